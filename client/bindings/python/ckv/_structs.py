"""The structs and numbers of the C ABI, field for field as in client/bindings/c/ckv*.h.

tests/client/bindings/python/layout_test.py compares each struct with the headers.
Pointers are c_void_p: an address is an int, so that a call makes no pointer objects.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_double, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

API_MAJOR = 1
API_MINOR = 0

UINT64_MAX = 2**64 - 1
TIMEOUT_NONE = UINT64_MAX
LOCAL_CACHE_NONE = UINT64_MAX
CACHE_FULL = UINT64_MAX
RANK_NONE = 2**32 - 1
CHUNK_ID_BYTES = 32

DTYPES = {"bf16": 1, "f32": 2, "fp8_ds_mla": 3}
WIRES = {"bf16": 1, "f32": 2}
DTYPE_NAMES = {number: name for name, number in DTYPES.items()}
ROPE_STYLES = {"none": 0, "interleaved": 1, "half_split": 2}
INDEX_DTYPES = {"": 0, "bf16": 1, "fp8": 2, "int8": 3}
INDEX_DTYPE_NAMES = {number: name for name, number in INDEX_DTYPES.items()}
ROPE_STYLE_NAMES = {number: name for name, number in ROPE_STYLES.items()}
POLICIES = {"auto": 0, "route": 1, "cache": 2}
PRECISIONS = {None: 0, "exact": 1, "wire": 2, "fast": 3}
PRECISION_NAMES = {number: name for name, number in PRECISIONS.items() if name}
MEMORIES = {"host": 0, "pinned": 1, "device": 2}
LSE_FORMS = {"natural": 0, "base2": 1, "flashmla": 2, "flashinfer": 3}


class Struct(ctypes.Structure):
    """A struct that begins with its size. `made` sets it, and leaves the other fields 0."""

    @classmethod
    def made(cls, **fields):
        return cls(struct_size=ctypes.sizeof(cls), **fields)


class OpenOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("directory", c_char_p),
        ("tenant", c_char_p),
        ("name", c_char_p),
        ("requester", c_char_p),
        ("fabrics", c_char_p),
        ("verbs_device", c_char_p),
        ("backend", c_char_p),
        ("kernel_target", c_char_p),
        ("local_cache_bytes", c_uint64),
        ("call_count_max", c_uint32),
        ("call_threads", c_uint32),
        ("connect_timeout_ns", c_uint64),
        ("announce", c_char_p),
        ("announce_rank", c_uint32),
        ("announce_rank_count", c_uint32),
    ]


class CorpusFacts(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("model", c_char_p),
        ("revision", c_char_p),
        ("version", c_uint64),
        ("token_count", c_uint64),
        ("chunk_count", c_uint32),
        ("layers", c_uint32),
        ("d_qk", c_uint32),
        ("d_v", c_uint32),
        ("d_rope", c_uint32),
        ("row_dtype", c_uint32),
        ("row_bytes", c_uint32),
        ("rope_style", c_uint32),
        ("rope_theta", c_double),
        ("yarn_factor", c_double),
        ("yarn_original_max_position", c_double),
        ("yarn_beta_fast", c_double),
        ("yarn_beta_slow", c_double),
        ("yarn_mscale", c_double),
        ("yarn_mscale_all_dim", c_double),
        ("softmax_scale", c_double),
        ("index_scale", c_double),
        ("index_dim", c_uint32),
        ("index_heads", c_uint32),
        ("index_dtype", c_uint32),
        ("index_d_rope", c_uint32),
        ("index_rope_style", c_uint32),
        ("index_key_bytes", c_uint32),
    ]


class Part(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("corpus", c_void_p),
        ("chunks", c_void_p),
        ("offsets", c_void_p),
        ("chunk_count", c_uint32),
        ("reserved", c_uint32),
        ("offset", c_int64),
    ]


class ContextSpec(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("parts", c_void_p),
        ("part_count", c_uint32),
        ("policy", c_uint32),
        ("expect_steps", c_uint32),
        ("expect_agents", c_uint32),
        ("timeout_ns", c_uint64),
    ]


class OwnRows(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rows", c_void_p),
        ("row_count", c_uint32),
        ("stride_bytes", c_uint32),
        ("memory", c_uint32),
        ("reserved", c_uint32),
        ("visible", c_void_p),
        ("blocks", c_void_p),
        ("block_rows", c_uint32),
        ("block_count", c_uint32),
        ("block_stride_bytes", c_uint64),
        ("selected", c_void_p),
        ("selected_count", c_uint32),
        ("selected_group_rows", c_uint32),
    ]


class Segment(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("context", c_void_p),
        ("part", c_void_p),
        ("row_begin", c_uint32),
        ("row_count", c_uint32),
        ("selected", c_void_p),
        ("selected_count", c_uint32),
        ("selected_group_rows", c_uint32),
        ("own", c_void_p),
        ("own_count", c_uint32),
        ("choice_token_begin", c_uint32),
        ("choice", c_void_p),
        ("choice_group_rows", c_uint32),
        ("reserved", c_uint32),
    ]


class AttendCall(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("layer", c_uint32),
        ("row_count", c_uint32),
        ("q", c_void_p),
        ("q_stride", c_uint32),
        ("q_memory", c_uint32),
        ("o", c_void_p),
        ("m", c_void_p),
        ("l", c_void_p),
        ("out_memory", c_uint32),
        ("wire", c_uint32),
        ("segments", c_void_p),
        ("segment_count", c_uint32),
        ("precision", c_uint32),
        ("allow_approximate", c_uint32),
        ("reserved", c_uint32),
        ("timeout_ns", c_uint64),
        ("after", c_void_p),
        ("traceparent", c_char_p),
    ]


class AttendReport(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("bytes_sent", c_uint64),
        ("bytes_received", c_uint64),
        ("compute_ns_max", c_uint64),
        ("elapsed_ns", c_uint64),
        ("lost_ns", c_uint64),
        ("routed_pairs", c_uint64),
        ("cached_pairs", c_uint64),
        ("own_pairs", c_uint64),
        ("prefetched_bytes", c_uint64),
        ("failed_attempt_count", c_uint32),
        ("holder_count", c_uint32),
        ("precision", c_uint32),
        ("approximate", c_uint32),
        ("targets_differ", c_uint32),
        ("same_bits_anywhere", c_uint32),
        ("kernel_target", c_uint32),
        ("reserved", c_uint32),
    ]


class BlockPlace(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("layers", c_void_p),
        ("table", c_void_p),
        ("table_count", c_uint32),
        ("block_count", c_uint32),
        ("block_rows", c_uint32),
        ("reserved", c_uint32),
        ("block_stride_bytes", c_uint64),
        ("table_begin", c_uint64),
        ("token_begin", c_uint64),
        ("token_end", c_uint64),
    ]


class FetchCall(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("corpus", c_void_p),
        ("chunk_begin", c_uint32),
        ("chunk_end", c_uint32),
        ("layer_begin", c_uint32),
        ("layer_end", c_uint32),
        ("column_begin", c_uint32),
        ("column_bytes", c_uint32),
        ("position", c_uint64),
        ("rotate", c_uint32),
        ("rows_memory", c_uint32),
        ("rows", c_void_p),
        ("rows_bytes", c_uint64),
        ("layer_stride", c_uint64),
        ("token_stride", c_uint64),
        ("place", c_void_p),
        ("after", c_void_p),
        ("timeout_ns", c_uint64),
        ("early_return_ns", c_uint64),
        ("traceparent", c_char_p),
        ("index_keys", c_uint32),
        ("reserved", c_uint32),
    ]


class FetchReport(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("row_count", c_uint64),
        ("bytes", c_uint64),
        ("elapsed_ns", c_uint64),
        ("chunk_count", c_uint32),
        ("not_fetched_count", c_uint32),
    ]


class Partial(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("o", c_void_p),
        ("m", c_void_p),
        ("l", c_void_p),
        ("dtype", c_uint32),
        ("reserved", c_uint32),
    ]


class AdviceCall(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("corpus", c_void_p),
        ("chunks", c_void_p),
        ("chunk_count", c_uint32),
        ("query_rows", c_uint32),
        ("steps", c_uint32),
        ("agents", c_uint32),
        ("select", c_uint32),
        ("wire", c_uint32),
        ("cache_free_tokens", c_uint64),
        ("timeout_ns", c_uint64),
        ("spliced", c_uint32),
        ("reserved", c_uint32),
    ]


class RankRequest(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("tokens", c_double),
        ("cache_bytes", c_double),
        ("reserve_bytes", c_double),
    ]


class RankCandidate(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("matched_tokens", c_double),
        ("free_bytes", c_double),
        ("queued", c_double),
        ("batch", c_double),
        ("batch_max", c_double),
        ("iteration_base_us", c_double),
        ("iteration_request_us", c_double),
        ("bandwidth_bytes_per_s", c_double),
        ("latency_us", c_double),
        ("congestion", c_double),
        ("in_flight", c_double),
    ]


class RankCost(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("missing_bytes", c_double),
        ("bandwidth_bytes_per_s", c_double),
        ("transfer_us", c_double),
        ("queue_us", c_double),
        ("decode_us", c_double),
        ("total_us", c_double),
        ("has_room", c_uint32),
        ("reserved", c_uint32),
    ]


class ExtraKey(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("begin", c_int64),
        ("digest", c_void_p),
        ("digest_bytes", c_uint32),
        ("token_count", c_uint32),
    ]


class FindCall(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("tokens", c_void_p),
        ("token_count", c_uint32),
        ("extra_key_count", c_uint32),
        ("extra_keys", c_void_p),
        ("model_of", c_void_p),
        ("timeout_ns", c_uint64),
    ]


class FindReport(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("matched_token_count", c_uint64),
        ("truncated", c_uint32),
        ("reserved", c_uint32),
    ]


class PutTarget(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("corpus", c_char_p),
        ("parent", c_void_p),
        ("create", c_void_p),
        ("bytes_max", c_uint64),
        ("replicas", c_uint32),
        ("reserved", c_uint32),
        ("timeout_ns", c_uint64),
        ("ttl_ms", c_uint64),
        ("quota_bytes", c_uint64),
        ("kept_version_count", c_uint32),
        ("reserved2", c_uint32),
    ]


class PutChunk(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("token_ids", c_void_p),
        ("token_count", c_uint32),
        ("standalone", c_uint32),
        ("position", c_uint64),
        ("extra_keys", c_void_p),
        ("extra_key_count", c_uint32),
        ("reserved", c_uint32),
    ]


class PutReport(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("version", c_uint64),
        ("bytes_sent", c_uint64),
        ("chunk_begin", c_uint32),
        ("added_count", c_uint32),
        ("kept", c_uint32),
        ("reserved", c_uint32),
    ]


class Load(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("address", c_char_p),
        ("host", c_char_p),
        ("free_bytes", c_double),
        ("queued", c_double),
        ("batch", c_double),
        ("batch_max", c_double),
        ("iteration_base_us", c_double),
        ("iteration_request_us", c_double),
        ("chunk_ids", c_void_p),
        ("chunk_count", c_uint32),
        ("reserved", c_uint32),
    ]


class RankQuery(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("corpus", c_char_p),
        ("tokens", c_double),
        ("cache_bytes", c_double),
        ("reserve_bytes", c_double),
        ("chunk_ids", c_void_p),
        ("chunk_tokens", c_void_p),
        ("chunk_count", c_uint32),
        ("prefix_only", c_uint32),
        ("from_hosts", c_char_p),
        ("in_flight", c_void_p),
        ("tier_count", c_uint32),
        ("with_tolerance", c_uint32),
        ("timeout_ns", c_uint64),
    ]


class SelectCall(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("context", c_void_p),
        ("layer", c_uint32),
        ("token_count", c_uint32),
        ("q", c_void_p),
        ("weights", c_void_p),
        ("q_dtype", c_uint32),
        ("k", c_uint32),
        ("own_scores", c_void_p),
        ("own_count", c_uint32),
        ("reserved", c_uint32),
        ("timeout_ns", c_uint64),
        ("traceparent", c_char_p),
    ]


class SelectReport(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("bytes_sent", c_uint64),
        ("bytes_received", c_uint64),
        ("compute_ns_max", c_uint64),
        ("elapsed_ns", c_uint64),
        ("holder_count", c_uint32),
        ("reserved", c_uint32),
    ]


# C's name of each, by which the test finds it in the headers.
C_NAMES = {
    "ckv_open_options": OpenOptions,
    "ckv_corpus_facts": CorpusFacts,
    "ckv_part": Part,
    "ckv_context_spec": ContextSpec,
    "ckv_own_rows": OwnRows,
    "ckv_segment": Segment,
    "ckv_attend_call": AttendCall,
    "ckv_attend_report": AttendReport,
    "ckv_block_place": BlockPlace,
    "ckv_fetch_call": FetchCall,
    "ckv_fetch_report": FetchReport,
    "ckv_partial": Partial,
    "ckv_advice_call": AdviceCall,
    "ckv_load": Load,
    "ckv_rank_query": RankQuery,
    "ckv_rank_request": RankRequest,
    "ckv_rank_candidate": RankCandidate,
    "ckv_rank_cost": RankCost,
    "ckv_extra_key": ExtraKey,
    "ckv_find_call": FindCall,
    "ckv_find_report": FindReport,
    "ckv_put_target": PutTarget,
    "ckv_put_chunk": PutChunk,
    "ckv_put_report": PutReport,
    "ckv_select_call": SelectCall,
    "ckv_select_report": SelectReport,
}
