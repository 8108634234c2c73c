"""Will it fit, does it leak?  What to do when memory runs out."""
