"""Rows of the ledger: what a pass, its outputs and its model hold beside the layers."""
