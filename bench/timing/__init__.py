# SPDX-License-Identifier: Apache-2.0
"""Times of calls: the machine, interleaved batches, the cost of a call, the speed of copies."""
