# SPDX-License-Identifier: Apache-2.0
"""The public functions: they check a call and send it to the host or to a device."""
