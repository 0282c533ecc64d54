"""Paths: where and how they are drawn, and the scores of their steps."""
