"""How is state saved, verified, found and loaded?"""
