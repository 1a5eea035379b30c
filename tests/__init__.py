"""Tests of the parts, of the contracts and of whole processes."""

import pytest

# The contract kit is part of the package; rewrite its assertions as well.
pytest.register_assert_rewrite("holdfast.testing")
