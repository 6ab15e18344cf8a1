# SPDX-License-Identifier: Apache-2.0
"""The C ABI of bridge/anabranch_c.h: its structures, and each function's result and arguments.

Made by scripts/make_abi.py, which a test runs. ``library`` loads the functions. Handles are void
pointers; arrays of numbers that are read may be bytes.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_ssize_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any


class StepFields(ctypes.Structure):
    """AnabranchStep."""

    _fields_ = [("kind", c_int32), ("stream", c_uint32), ("name", c_char_p), ("source", c_char_p),
                ("event", c_uint32), ("access_count", c_uint32)]


class Buffer(ctypes.Structure):
    """AnabranchBuffer."""

    _fields_ = [("name", c_char_p), ("role", c_int32), ("size_bytes", c_uint64),
                ("alignment", c_uint64)]


class ReportFields(ctypes.Structure):
    """AnabranchReport."""

    _fields_ = [("kind", c_int32), ("severity", c_int32), ("first", c_uint32), ("second", c_uint32),
                ("buffer", c_uint32), ("begin_byte", c_uint64), ("end_byte", c_uint64),
                ("message", c_char_p)]


class OffloadTensor(ctypes.Structure):
    """AnabranchOffloadTensor."""

    _fields_ = [("size_bytes", c_uint64), ("made_after", c_uint32), ("last_forward_use", c_uint32),
                ("first_backward_use", c_uint32), ("last_backward_use", c_uint32),
                ("recompute_ns", c_int64), ("may_offload", c_int32), ("must", c_int32),
                ("needs", POINTER(c_uint32)), ("need_count", c_size_t)]


class OffloadLink(ctypes.Structure):
    """AnabranchOffloadLink."""

    _fields_ = [("out_bytes_per_s", c_double), ("in_bytes_per_s", c_double),
                ("latency_ns", c_uint64), ("both_ways", c_double)]


class OffloadProblem(ctypes.Structure):
    """AnabranchOffloadProblem."""

    _fields_ = [("step_ns", POINTER(c_uint64)), ("base_bytes", POINTER(c_uint64)),
                ("step_count", c_size_t), ("forward_steps", c_size_t),
                ("tensors", POINTER(OffloadTensor)), ("tensor_count", c_size_t),
                ("link", OffloadLink), ("link_margin", c_double), ("budget_bytes", c_uint64),
                ("pinned_bytes", c_uint64)]


class OffloadDecision(ctypes.Structure):
    """AnabranchOffloadDecision."""

    _fields_ = [("choice", c_int32), ("back_before", c_uint32), ("freed_before", c_uint32),
                ("out_order", c_uint32), ("out_after", c_uint32), ("in_order", c_uint32),
                ("in_before", c_uint32), ("pinned_offset", c_uint64)]


class OffloadPrediction(ctypes.Structure):
    """AnabranchOffloadPrediction."""

    _fields_ = [("peak_bytes", c_uint64), ("peak_step", c_uint64), ("total_ns", c_uint64),
                ("added_ns", c_uint64), ("recompute_ns", c_uint64), ("out_bytes", c_uint64),
                ("in_bytes", c_uint64), ("pinned_bytes", c_uint64)]


class HostOptionsFields(ctypes.Structure):
    """AnabranchHostOptions."""

    _fields_ = [("max_lanes", c_uint32), ("spin_ns", c_uint64), ("has_delays", c_int32),
                ("delays_seed", c_uint64), ("prepare_threads", c_void_p), ("get_openmp", c_void_p),
                ("set_openmp", c_void_p), ("set_mkl_local", c_void_p), ("team_run", c_void_p),
                ("team_index", c_void_p), ("team_size", c_void_p)]


class TraceEvent(ctypes.Structure):
    """AnabranchTraceEvent."""

    _fields_ = [("kind", c_int32), ("lane", c_uint32), ("step", c_uint32), ("other", c_uint32),
                ("begin_ns", c_uint64), ("end_ns", c_uint64)]


class TensorLibrary(ctypes.Structure):
    """AnabranchTensorLibrary."""

    _fields_ = [("create_view", c_void_p), ("delete_tensor", c_void_p), ("new_handle", c_void_p),
                ("data_pointer", c_void_p), ("strides", c_void_p), ("copy", c_void_p),
                ("dispatch", c_void_p), ("new_list", c_void_p), ("list_push", c_void_p),
                ("delete_list", c_void_p), ("last_error", c_void_p), ("version", c_uint64),
                ("device_type", c_int32), ("layout", c_int32)]


class CaptureBlock(ctypes.Structure):
    """AnabranchCaptureBlock."""

    _fields_ = [("first_address", c_uint64), ("second_address", c_uint64), ("size_bytes", c_uint64),
                ("given", c_uint64), ("fresh", c_uint64)]


class CaptureSlot(ctypes.Structure):
    """AnabranchCaptureSlot."""

    _fields_ = [("block", c_uint64), ("size_bytes", c_uint64), ("alignment", c_uint64)]


class CaptureCounts(ctypes.Structure):
    """AnabranchCaptureCounts."""

    _fields_ = [("nodes", c_uint64), ("sites", c_uint64), ("unsure", c_uint64), ("known", c_uint64),
                ("host_copies", c_uint64), ("lanes", c_uint64), ("captured_lanes", c_uint64),
                ("arena_bytes", c_uint64), ("arena_lower_bound_bytes", c_uint64),
                ("held_device_bytes", c_uint64), ("held_host_bytes", c_uint64),
                ("held_driver_bytes", c_uint64), ("launched_unchanged", c_uint64),
                ("launched_from_host", c_uint64), ("launched_from_device", c_uint64)]


class CaptureRange(ctypes.Structure):
    """AnabranchCaptureRange."""

    _fields_ = [("begin", c_uint64), ("size_bytes", c_uint64)]


class CaptureChecksum(ctypes.Structure):
    """AnabranchCaptureChecksum."""

    _fields_ = [("first", c_uint64), ("second", c_uint64)]


class CaptureWork(ctypes.Structure):
    """AnabranchCaptureWork."""

    _fields_ = [("mark", c_uint32), ("uses", c_uint32), ("has_scratch", c_uint32),
                ("independent", c_uint32), ("in_turn", c_uint32)]


class CaptureUse(ctypes.Structure):
    """AnabranchCaptureUse."""

    _fields_ = [("address", c_uint64), ("writes", c_uint64)]


class CaptureNotes(ctypes.Structure):
    """AnabranchCaptureNotes."""

    _fields_ = [("marks", c_void_p), ("of_second", c_uint32), ("blocks_before", c_uint32),
                ("works", POINTER(CaptureWork)), ("work_count", c_size_t),
                ("uses", POINTER(CaptureUse)), ("use_count", c_size_t)]


class CaptureOptions(ctypes.Structure):
    """AnabranchCaptureOptions."""

    _fields_ = [("accept_unsure", c_uint32), ("lanes", c_uint32), ("ahead_bytes", c_uint64),
                ("parallel_bytes", c_uint64), ("mapped_memory", c_uint64),
                ("few_launches", c_uint64)]


class CaptureNumbers(ctypes.Structure):
    """AnabranchCaptureNumbers."""

    _fields_ = [("capture", c_void_p), ("addresses", POINTER(c_uint64))]


class CaptureNumber(ctypes.Structure):
    """AnabranchCaptureNumber."""

    _fields_ = [("size_bytes", c_uint64), ("first", c_uint64), ("other", c_uint64)]


class NumberEntry(ctypes.Structure):
    """AnabranchNumberEntry."""

    _fields_ = [("made_by", c_uint32), ("is_looked_at", c_uint32), ("entries", c_int32 * 2),
                ("constants", c_double * 2), ("value", c_double)]


class NodeTime(ctypes.Structure):
    """AnabranchNodeTime."""

    _fields_ = [("begin_ns", c_uint64), ("end_ns", c_uint64)]


# Name -> result, arguments.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "last_error_code": (c_int32,),
    "last_error_text": (c_char_p,),
    "version": (c_char_p,),
    "builder_new": (c_void_p,),
    "builder_free": (None, c_void_p),
    "builder_add_stream": (c_uint32, c_void_p, c_char_p, c_int32, c_int32),
    "builder_add_event": (c_uint32, c_void_p, c_char_p),
    "builder_add_buffer": (c_uint32, c_void_p, c_char_p, c_int32, c_uint64, c_uint64),
    "builder_begin_step": (None, c_void_p, c_int32, c_uint32, c_char_p, c_char_p),
    "builder_add_access": (None, c_void_p, c_int32, c_uint32, c_uint64, c_uint64, c_uint32,
                           c_void_p, c_void_p),
    "builder_add_whole": (None, c_void_p, c_int32, c_uint32),
    "builder_set_event": (None, c_void_p, c_uint32),
    "builder_set_fill_byte": (None, c_void_p, c_uint8),
    "builder_end_step": (c_uint32, c_void_p),
    "builder_build": (c_void_p, c_void_p),
    "program_free": (None, c_void_p),
    "program_step_count": (c_uint32, c_void_p),
    "program_buffer_count": (c_uint32, c_void_p),
    "program_stream_count": (c_uint32, c_void_p),
    "program_step": (None, c_void_p, c_uint32, POINTER(StepFields)),
    "program_buffer": (None, c_void_p, c_uint32, POINTER(Buffer)),
    "program_stream_name": (c_char_p, c_void_p, c_uint32),
    "program_stream_origin": (c_int32, c_void_p, c_uint32),
    "program_stream_priority": (c_int32, c_void_p, c_uint32),
    "program_find_regions": (c_int32, c_void_p, POINTER(c_uint32)),
    "program_find_reports": (c_void_p, c_void_p, c_int32),
    "reports_free": (None, c_void_p),
    "reports_count": (c_size_t, c_void_p),
    "reports_report": (None, c_void_p, c_uint32, POINTER(ReportFields)),
    "plan_make": (c_void_p, c_void_p, c_int32),
    "plan_free": (None, c_void_p),
    "plan_arena_bytes": (c_uint64, c_void_p),
    "plan_arena_lower_bound_bytes": (c_uint64, c_void_p),
    "plan_arena_naive_bytes": (c_uint64, c_void_p),
    "plan_offset": (c_uint64, c_void_p, c_uint32),
    "plan_program": (c_void_p, c_void_p),
    "plan_order": (c_size_t, c_void_p, POINTER(c_uint32)),
    "plan_waits": (c_size_t, c_void_p, POINTER(c_uint32)),
    "plan_slots": (c_size_t, c_void_p, POINTER(c_uint32)),
    "plan_exits": (c_size_t, c_void_p, POINTER(c_uint32)),
    "plan_redundant_waits": (c_size_t, c_void_p, POINTER(c_uint32)),
    "plan_dump": (c_char_p, c_void_p),
    "plan_write": (c_int32, c_void_p, c_char_p),
    "plan_read": (c_void_p, c_char_p),
    "plan_bytes": (c_void_p, c_void_p, POINTER(c_size_t)),
    "plan_from_bytes": (c_void_p, c_void_p, c_size_t),
    "offload_plan": (c_int32, POINTER(OffloadProblem), POINTER(OffloadDecision),
                     POINTER(OffloadPrediction), POINTER(c_uint64), POINTER(c_char_p)),
    "offload_simulate": (c_int32, POINTER(OffloadProblem), POINTER(OffloadDecision),
                         POINTER(OffloadPrediction)),
    "offload_check": (c_int32, POINTER(OffloadProblem), POINTER(OffloadDecision), c_uint64),
    "offload_link_count": (c_size_t,),
    "offload_link": (c_char_p, c_size_t, POINTER(OffloadLink)),
    "device_host": (c_void_p, POINTER(HostOptionsFields)),
    "device_free": (None, c_void_p),
    "cuda_facts_new": (c_void_p,),
    "cuda_facts_free": (None, c_void_p),
    "cuda_facts_driver_version": (c_int32, c_void_p),
    "cuda_facts_feature_count": (c_size_t, c_void_p),
    "cuda_facts_feature_name": (c_char_p, c_void_p, c_size_t),
    "cuda_facts_feature_why_off": (c_char_p, c_void_p, c_size_t),
    "cuda_facts_gpu_count": (c_size_t, c_void_p),
    "cuda_facts_gpu": (c_char_p, c_void_p, c_size_t),
    "cuda_facts_why_no_gpus": (c_char_p, c_void_p),
    "stream_ties_new": (c_void_p, c_void_p),
    "stream_ties_free": (None, c_void_p),
    "stream_ties_join": (c_int32, c_void_p, c_void_p, c_void_p, c_uint32),
    "stream_ties_fork": (c_int32, c_void_p, c_void_p, c_void_p, c_uint32),
    "recording_make": (c_void_p, c_void_p, c_void_p, c_size_t, POINTER(c_char_p), c_void_p,
                       c_void_p),
    "recording_free": (None, c_void_p),
    "recording_lane_count": (c_uint32, c_void_p),
    "recording_launch": (c_int32, c_void_p, c_void_p, c_uint32),
    "recording_launch_sized": (c_int32, c_void_p, c_void_p, c_void_p, c_uint32),
    "trace_new": (c_void_p, c_size_t),
    "trace_free": (None, c_void_p),
    "trace_attach": (None, c_void_p, c_void_p),
    "trace_clear": (None, c_void_p),
    "trace_dropped": (c_uint64, c_void_p),
    "trace_count": (c_size_t, c_void_p),
    "trace_events": (c_size_t, c_void_p, POINTER(TraceEvent), c_size_t),
    "trace_chrome_json": (c_char_p, c_void_p, c_void_p),
    "trace_dump": (c_char_p, c_void_p, c_void_p),
    "plan_json": (c_char_p, c_void_p),
    "tape_builder_new": (c_void_p, POINTER(TensorLibrary)),
    "tape_builder_free": (None, c_void_p),
    "tape_view": (c_uint32, c_void_p, c_uint32, c_uint64, c_int32, c_size_t, c_void_p, c_void_p),
    "tape_view_of": (c_uint32, c_void_p, c_uint32, c_uint64, c_int32, c_size_t, c_void_p, c_void_p),
    "tape_add_int": (None, c_void_p, c_int64),
    "tape_add_double": (None, c_void_p, c_double),
    "tape_add_address": (None, c_void_p, c_uint32, c_uint64),
    "tape_add_data": (None, c_void_p, c_uint32),
    "tape_add_handle": (None, c_void_p, c_uint32),
    "tape_add_ints": (None, c_void_p, c_void_p, c_size_t),
    "tape_call": (None, c_void_p, c_char_p, c_void_p, c_int32),
    "tape_value_none": (None, c_void_p),
    "tape_value_int": (None, c_void_p, c_int64),
    "tape_value_double": (None, c_void_p, c_double),
    "tape_value_tensor": (None, c_void_p, c_uint32),
    "tape_open_list": (None, c_void_p),
    "tape_open_some": (None, c_void_p),
    "tape_close": (None, c_void_p),
    "tape_dispatch": (None, c_void_p, c_char_p, c_char_p, c_uint32, POINTER(c_uint32)),
    "tape_expect": (None, c_void_p, c_uint32, c_size_t, c_void_p, c_void_p),
    "tape_copy": (None, c_void_p, c_uint32, c_uint32),
    "tape_release": (None, c_void_p, c_uint32),
    "tape_finish": (c_void_p, c_void_p),
    "tape_free": (None, c_void_p),
    "tape_dump": (c_char_p, c_void_p),
    "tape_region_function": (c_void_p,),
    "tape_run": (c_int32, c_void_p, c_void_p, c_uint32, c_char_p, c_uint32),
    "capture_device_open": (c_void_p, c_int32),
    "capture_device_free": (None, c_void_p),
    "capture_device_why_no_device_code": (c_char_p, c_void_p),
    "capture_device_why_tensor_maps_are_opaque": (c_char_p, c_void_p),
    "capture_clear": (c_int32, c_void_p, c_void_p),
    "capture_memory_new": (c_void_p, c_void_p, c_int32),
    "capture_memory_free": (None, c_void_p),
    "capture_memory_begin_capture": (None, c_void_p),
    "capture_memory_allocate": (c_uint64, c_void_p, c_uint64),
    "capture_memory_open": (None, c_void_p),
    "capture_allocate": (c_void_p, c_ssize_t, c_int, c_void_p),
    "capture_release": (None, c_void_p, c_ssize_t, c_int, c_void_p),
    "capture_memory_take_own": (None, c_void_p, c_void_p, c_size_t),
    "capture_memory_give_own": (c_int32, c_void_p),
    "capture_snapshot_new": (c_void_p, c_void_p, c_void_p, POINTER(CaptureRange), c_size_t),
    "capture_snapshot_free": (None, c_void_p),
    "capture_checksums": (c_int32, c_void_p, POINTER(CaptureRange), c_size_t, c_void_p,
                          POINTER(CaptureChecksum)),
    "capture_snapshot_mentions": (c_char_p, c_void_p, POINTER(CaptureRange), c_size_t, c_void_p),
    "capture_marks_new": (c_void_p, c_void_p),
    "capture_marks_free": (None, c_void_p),
    "capture_mark": (c_int32, c_void_p, c_void_p, c_uint64, POINTER(c_uint32)),
    "capture_has_new": (c_int32, c_void_p, c_void_p),
    "captured_step_discover": (c_void_p, c_void_p, c_void_p, c_void_p, POINTER(CaptureBlock),
                               c_size_t, POINTER(CaptureNotes), POINTER(CaptureNumbers)),
    "captured_step_discover_known": (c_void_p, c_void_p, c_void_p, c_void_p, POINTER(CaptureBlock),
                                     c_size_t, POINTER(CaptureNotes)),
    "captured_step_free": (None, c_void_p),
    "capture_layouts_new": (c_void_p,),
    "capture_layouts_add": (c_int32, c_void_p, c_void_p),
    "capture_layouts_free": (None, c_void_p),
    "captured_step_unsure": (c_uint32, c_void_p),
    "captured_step_stretches": (c_size_t, c_void_p, c_void_p, c_size_t, POINTER(c_uint32)),
    "captured_step_stretch": (c_void_p, c_void_p, c_uint32, c_uint32),
    "captured_step_record": (c_void_p, c_void_p, POINTER(CaptureOptions)),
    "captured_free": (None, c_void_p),
    "captured_slots": (c_size_t, c_void_p, POINTER(CaptureSlot)),
    "captured_counts": (None, c_void_p, POINTER(CaptureCounts)),
    "captured_parts": (c_size_t, c_void_p, POINTER(c_uint64)),
    "captured_numbers": (c_size_t, c_void_p, POINTER(CaptureNumber)),
    "captured_launch": (c_int32, c_void_p, c_void_p, c_uint32, c_void_p),
    "number_program_make": (c_void_p, POINTER(NumberEntry), POINTER(NumberEntry), c_size_t,
                            POINTER(CaptureNumber), c_size_t),
    "number_program_free": (None, c_void_p),
    "number_program_run": (c_int32, c_void_p, c_void_p, POINTER(c_uint64)),
    "numbers_apart": (c_int32, POINTER(NumberEntry), c_size_t, c_void_p, c_void_p, c_size_t,
                      POINTER(c_double)),
    "captured_nodes": (c_char_p, c_void_p),
    "captured_marks": (c_size_t, c_void_p, c_void_p, POINTER(c_uint32)),
    "timed_new": (c_void_p, c_void_p, c_void_p, c_uint32),
    "timed_free": (None, c_void_p),
    "timed_mark_plain": (c_int32, c_void_p, c_uint32, c_void_p),
    "timed_is_over": (c_int32, c_void_p, POINTER(c_uint32)),
    "timed_launch": (c_int32, c_void_p, c_void_p, c_uint32, c_void_p),
    "timed_times": (c_int32, c_void_p, POINTER(NodeTime), c_size_t),
    "timed_plain_times": (c_int32, c_void_p, POINTER(c_uint64), POINTER(c_uint64)),
}
