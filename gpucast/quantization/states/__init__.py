# SPDX-License-Identifier: Apache-2.0
"""States of optimizers in 8 bits."""
