"""Do all ranks agree?"""
