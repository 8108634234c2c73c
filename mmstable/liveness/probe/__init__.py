"""How can a run be asked, and changed, while it runs?"""
