"""Tests: of the parts, of the contracts, of whole processes."""

import pytest

# The contract kit lives with the code; its assertions should say as much as those here.
pytest.register_assert_rewrite("holdfast.testing")
