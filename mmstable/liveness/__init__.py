"""Is it alive, is it slow?"""
