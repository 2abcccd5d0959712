# SPDX-License-Identifier: Apache-2.0
"""Planning: what a conversion will do, worked out before anything is written."""
