"""What is done about a fault?"""
