"""Events for operators, through the standard library's loggers: silent until somebody listens."""

import logging

import structlog

log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    logging.getLogger("holdfast"),
    wrapper_class=structlog.stdlib.BoundLogger,
    processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
)
"""`log.info("run.ended", run_id=…)`: ids always, content never."""
