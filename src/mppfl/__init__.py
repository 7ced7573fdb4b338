"""mppfl"""
