"""Will it fit, does it leak?"""
