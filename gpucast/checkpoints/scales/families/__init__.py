# SPDX-License-Identifier: Apache-2.0
"""Families of published checkpoints that name codes and scales in ways of their own."""
