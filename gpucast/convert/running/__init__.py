# SPDX-License-Identifier: Apache-2.0
"""Carries out conversions: writes files beside the target, resumes, verifies, and shares the work among machines."""
