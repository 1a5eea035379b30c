"""A model provider that misbehaves on command. It imports no other package of Holdfast."""
