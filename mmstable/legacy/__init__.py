"""What did mmcv 1.x mean?"""
