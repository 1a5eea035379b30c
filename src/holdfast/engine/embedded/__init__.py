"""The Python API for programs that embed the engine."""
