# SPDX-License-Identifier: Apache-2.0
"""Casts of arrays on a device. Its modules but `devices` are imported at the first device array."""
