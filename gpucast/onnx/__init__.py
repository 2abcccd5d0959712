# SPDX-License-Identifier: Apache-2.0
"""ONNX models, onnxruntime and MDF. Each is an optional dependency, imported only when its module is."""
