"""The sections of the report; each module measures one and adds its rows."""
