"""What would go wrong?  Looks at a config before it is trained with."""
