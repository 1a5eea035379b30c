"""Reports for operators, read from the tables of a whole store."""

from holdfast.stores.reports.sql_reports import SqlReports

__all__ = ["SqlReports"]
