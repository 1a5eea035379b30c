"""The list of all faults."""

from tests.faults.core_faults import CORE_FAULTS
from tests.faults.edge_faults import EDGE_FAULTS
from tests.faults.engine_faults import ENGINE_FAULTS
from tests.faults.store_faults import STORE_FAULTS

FAULTS = (*CORE_FAULTS, *STORE_FAULTS, *ENGINE_FAULTS, *EDGE_FAULTS)
