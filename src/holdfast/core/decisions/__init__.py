"""Pure decisions: a command and the facts it needs in, an outcome and changes out."""
