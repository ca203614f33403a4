// Goal: no field of a struct of ckv.h moves within a major version. A minor version adds fields
// behind the last one, with a line here. Compiling is the test.

#include <stddef.h>

#include "client/bindings/c/ckv.h"

#define AT(type, field, offset) \
  _Static_assert(offsetof(type, field) == (offset), #type "." #field " moved")
#define BEGINS(type) AT(type, struct_size, 0)
#define SIZE(type, size) _Static_assert(sizeof(type) == (size), #type " has another size")

_Static_assert(sizeof(void*) == 8 && sizeof(size_t) == 8, "the offsets below are for 64 bits");
_Static_assert(CKV_API_MAJOR == 1, "the offsets below are those of version 1");

BEGINS(ckv_open_options);
AT(ckv_open_options, directory, 8);
AT(ckv_open_options, tenant, 16);
AT(ckv_open_options, name, 24);
AT(ckv_open_options, requester, 32);
AT(ckv_open_options, fabrics, 40);
AT(ckv_open_options, verbs_device, 48);
AT(ckv_open_options, backend, 56);
AT(ckv_open_options, kernel_target, 64);
AT(ckv_open_options, local_cache_bytes, 72);
AT(ckv_open_options, call_count_max, 80);
AT(ckv_open_options, call_threads, 84);
AT(ckv_open_options, connect_timeout_ns, 88);
AT(ckv_open_options, announce, 96);
AT(ckv_open_options, announce_rank, 104);
AT(ckv_open_options, announce_rank_count, 108);
SIZE(ckv_open_options, 112);

BEGINS(ckv_corpus_facts);
AT(ckv_corpus_facts, name, 8);
AT(ckv_corpus_facts, model, 16);
AT(ckv_corpus_facts, revision, 24);
AT(ckv_corpus_facts, version, 32);
AT(ckv_corpus_facts, token_count, 40);
AT(ckv_corpus_facts, chunk_count, 48);
AT(ckv_corpus_facts, layers, 52);
AT(ckv_corpus_facts, d_qk, 56);
AT(ckv_corpus_facts, d_v, 60);
AT(ckv_corpus_facts, d_rope, 64);
AT(ckv_corpus_facts, row_dtype, 68);
AT(ckv_corpus_facts, row_bytes, 72);
AT(ckv_corpus_facts, rope_style, 76);
AT(ckv_corpus_facts, rope_theta, 80);
AT(ckv_corpus_facts, yarn_factor, 88);
AT(ckv_corpus_facts, yarn_original_max_position, 96);
AT(ckv_corpus_facts, yarn_beta_fast, 104);
AT(ckv_corpus_facts, yarn_beta_slow, 112);
AT(ckv_corpus_facts, yarn_mscale, 120);
AT(ckv_corpus_facts, yarn_mscale_all_dim, 128);
AT(ckv_corpus_facts, softmax_scale, 136);
AT(ckv_corpus_facts, index_scale, 144);
AT(ckv_corpus_facts, index_dim, 152);
AT(ckv_corpus_facts, index_heads, 156);
AT(ckv_corpus_facts, index_dtype, 160);
AT(ckv_corpus_facts, index_d_rope, 164);
AT(ckv_corpus_facts, index_rope_style, 168);
AT(ckv_corpus_facts, index_key_bytes, 172);
SIZE(ckv_corpus_facts, 176);

BEGINS(ckv_put_target);
AT(ckv_put_target, corpus, 8);
AT(ckv_put_target, parent, 16);
AT(ckv_put_target, create, 24);
AT(ckv_put_target, bytes_max, 32);
AT(ckv_put_target, replicas, 40);
AT(ckv_put_target, reserved, 44);
AT(ckv_put_target, timeout_ns, 48);
AT(ckv_put_target, ttl_ms, 56);
AT(ckv_put_target, quota_bytes, 64);
AT(ckv_put_target, kept_version_count, 72);
AT(ckv_put_target, reserved2, 76);
SIZE(ckv_put_target, 80);

BEGINS(ckv_put_chunk);
AT(ckv_put_chunk, token_ids, 8);
AT(ckv_put_chunk, token_count, 16);
AT(ckv_put_chunk, standalone, 20);
AT(ckv_put_chunk, position, 24);
AT(ckv_put_chunk, extra_keys, 32);
AT(ckv_put_chunk, extra_key_count, 40);
AT(ckv_put_chunk, reserved, 44);
SIZE(ckv_put_chunk, 48);

BEGINS(ckv_extra_key);
AT(ckv_extra_key, begin, 8);
AT(ckv_extra_key, digest, 16);
AT(ckv_extra_key, digest_bytes, 24);
AT(ckv_extra_key, token_count, 28);
SIZE(ckv_extra_key, 32);

BEGINS(ckv_put_report);
AT(ckv_put_report, version, 8);
AT(ckv_put_report, bytes_sent, 16);
AT(ckv_put_report, chunk_begin, 24);
AT(ckv_put_report, added_count, 28);
AT(ckv_put_report, kept, 32);
AT(ckv_put_report, reserved, 36);
SIZE(ckv_put_report, 40);

BEGINS(ckv_find_call);
AT(ckv_find_call, tokens, 8);
AT(ckv_find_call, token_count, 16);
AT(ckv_find_call, extra_key_count, 20);
AT(ckv_find_call, extra_keys, 24);
AT(ckv_find_call, model_of, 32);
AT(ckv_find_call, timeout_ns, 40);
SIZE(ckv_find_call, 48);

BEGINS(ckv_find_report);
AT(ckv_find_report, matched_token_count, 8);
AT(ckv_find_report, truncated, 16);
AT(ckv_find_report, reserved, 20);
SIZE(ckv_find_report, 24);

BEGINS(ckv_part);
AT(ckv_part, corpus, 8);
AT(ckv_part, chunks, 16);
AT(ckv_part, offsets, 24);
AT(ckv_part, chunk_count, 32);
AT(ckv_part, reserved, 36);
AT(ckv_part, offset, 40);
SIZE(ckv_part, 48);

BEGINS(ckv_context_spec);
AT(ckv_context_spec, parts, 8);
AT(ckv_context_spec, part_count, 16);
AT(ckv_context_spec, policy, 20);
AT(ckv_context_spec, expect_steps, 24);
AT(ckv_context_spec, expect_agents, 28);
AT(ckv_context_spec, timeout_ns, 32);
SIZE(ckv_context_spec, 40);

BEGINS(ckv_own_rows);
AT(ckv_own_rows, rows, 8);
AT(ckv_own_rows, row_count, 16);
AT(ckv_own_rows, stride_bytes, 20);
AT(ckv_own_rows, memory, 24);
AT(ckv_own_rows, reserved, 28);
AT(ckv_own_rows, visible, 32);
AT(ckv_own_rows, blocks, 40);
AT(ckv_own_rows, block_rows, 48);
AT(ckv_own_rows, block_count, 52);
AT(ckv_own_rows, block_stride_bytes, 56);
AT(ckv_own_rows, selected, 64);
AT(ckv_own_rows, selected_count, 72);
AT(ckv_own_rows, selected_group_rows, 76);
SIZE(ckv_own_rows, 80);

BEGINS(ckv_segment);
AT(ckv_segment, context, 8);
AT(ckv_segment, part, 16);
AT(ckv_segment, row_begin, 24);
AT(ckv_segment, row_count, 28);
AT(ckv_segment, selected, 32);
AT(ckv_segment, selected_count, 40);
AT(ckv_segment, selected_group_rows, 44);
AT(ckv_segment, own, 48);
AT(ckv_segment, own_count, 56);
AT(ckv_segment, choice_token_begin, 60);
AT(ckv_segment, choice, 64);
AT(ckv_segment, choice_group_rows, 72);
AT(ckv_segment, reserved, 76);
SIZE(ckv_segment, 80);

BEGINS(ckv_attend_call);
AT(ckv_attend_call, layer, 8);
AT(ckv_attend_call, row_count, 12);
AT(ckv_attend_call, q, 16);
AT(ckv_attend_call, q_stride, 24);
AT(ckv_attend_call, q_memory, 28);
AT(ckv_attend_call, o, 32);
AT(ckv_attend_call, m, 40);
AT(ckv_attend_call, l, 48);
AT(ckv_attend_call, out_memory, 56);
AT(ckv_attend_call, wire, 60);
AT(ckv_attend_call, segments, 64);
AT(ckv_attend_call, segment_count, 72);
AT(ckv_attend_call, precision, 76);
AT(ckv_attend_call, allow_approximate, 80);
AT(ckv_attend_call, reserved, 84);
AT(ckv_attend_call, timeout_ns, 88);
AT(ckv_attend_call, after, 96);
AT(ckv_attend_call, traceparent, 104);
SIZE(ckv_attend_call, 112);

BEGINS(ckv_attend_report);
AT(ckv_attend_report, bytes_sent, 8);
AT(ckv_attend_report, bytes_received, 16);
AT(ckv_attend_report, compute_ns_max, 24);
AT(ckv_attend_report, elapsed_ns, 32);
AT(ckv_attend_report, lost_ns, 40);
AT(ckv_attend_report, routed_pairs, 48);
AT(ckv_attend_report, cached_pairs, 56);
AT(ckv_attend_report, own_pairs, 64);
AT(ckv_attend_report, prefetched_bytes, 72);
AT(ckv_attend_report, failed_attempt_count, 80);
AT(ckv_attend_report, holder_count, 84);
AT(ckv_attend_report, precision, 88);
AT(ckv_attend_report, approximate, 92);
AT(ckv_attend_report, targets_differ, 96);
AT(ckv_attend_report, same_bits_anywhere, 100);
AT(ckv_attend_report, kernel_target, 104);
AT(ckv_attend_report, reserved, 108);
SIZE(ckv_attend_report, 112);

BEGINS(ckv_load);
AT(ckv_load, address, 8);
AT(ckv_load, host, 16);
AT(ckv_load, free_bytes, 24);
AT(ckv_load, queued, 32);
AT(ckv_load, batch, 40);
AT(ckv_load, batch_max, 48);
AT(ckv_load, iteration_base_us, 56);
AT(ckv_load, iteration_request_us, 64);
AT(ckv_load, chunk_ids, 72);
AT(ckv_load, chunk_count, 80);
AT(ckv_load, reserved, 84);
SIZE(ckv_load, 88);

BEGINS(ckv_rank_query);
AT(ckv_rank_query, corpus, 8);
AT(ckv_rank_query, tokens, 16);
AT(ckv_rank_query, cache_bytes, 24);
AT(ckv_rank_query, reserve_bytes, 32);
AT(ckv_rank_query, chunk_ids, 40);
AT(ckv_rank_query, chunk_tokens, 48);
AT(ckv_rank_query, chunk_count, 56);
AT(ckv_rank_query, prefix_only, 60);
AT(ckv_rank_query, from_hosts, 64);
AT(ckv_rank_query, in_flight, 72);
AT(ckv_rank_query, tier_count, 80);
AT(ckv_rank_query, with_tolerance, 84);
AT(ckv_rank_query, timeout_ns, 88);
SIZE(ckv_rank_query, 96);

BEGINS(ckv_rank_request);
AT(ckv_rank_request, tokens, 8);
AT(ckv_rank_request, cache_bytes, 16);
AT(ckv_rank_request, reserve_bytes, 24);
SIZE(ckv_rank_request, 32);

BEGINS(ckv_rank_candidate);
AT(ckv_rank_candidate, matched_tokens, 8);
AT(ckv_rank_candidate, free_bytes, 16);
AT(ckv_rank_candidate, queued, 24);
AT(ckv_rank_candidate, batch, 32);
AT(ckv_rank_candidate, batch_max, 40);
AT(ckv_rank_candidate, iteration_base_us, 48);
AT(ckv_rank_candidate, iteration_request_us, 56);
AT(ckv_rank_candidate, bandwidth_bytes_per_s, 64);
AT(ckv_rank_candidate, latency_us, 72);
AT(ckv_rank_candidate, congestion, 80);
AT(ckv_rank_candidate, in_flight, 88);
SIZE(ckv_rank_candidate, 96);

BEGINS(ckv_rank_cost);
AT(ckv_rank_cost, missing_bytes, 8);
AT(ckv_rank_cost, bandwidth_bytes_per_s, 16);
AT(ckv_rank_cost, transfer_us, 24);
AT(ckv_rank_cost, queue_us, 32);
AT(ckv_rank_cost, decode_us, 40);
AT(ckv_rank_cost, total_us, 48);
AT(ckv_rank_cost, has_room, 56);
AT(ckv_rank_cost, reserved, 60);
SIZE(ckv_rank_cost, 64);

BEGINS(ckv_partial);
AT(ckv_partial, o, 8);
AT(ckv_partial, m, 16);
AT(ckv_partial, l, 24);
AT(ckv_partial, dtype, 32);
AT(ckv_partial, reserved, 36);
SIZE(ckv_partial, 40);

BEGINS(ckv_fetch_call);
AT(ckv_fetch_call, corpus, 8);
AT(ckv_fetch_call, chunk_begin, 16);
AT(ckv_fetch_call, chunk_end, 20);
AT(ckv_fetch_call, layer_begin, 24);
AT(ckv_fetch_call, layer_end, 28);
AT(ckv_fetch_call, column_begin, 32);
AT(ckv_fetch_call, column_bytes, 36);
AT(ckv_fetch_call, position, 40);
AT(ckv_fetch_call, rotate, 48);
AT(ckv_fetch_call, rows_memory, 52);
AT(ckv_fetch_call, rows, 56);
AT(ckv_fetch_call, rows_bytes, 64);
AT(ckv_fetch_call, layer_stride, 72);
AT(ckv_fetch_call, token_stride, 80);
AT(ckv_fetch_call, place, 88);
AT(ckv_fetch_call, after, 96);
AT(ckv_fetch_call, timeout_ns, 104);
AT(ckv_fetch_call, early_return_ns, 112);
AT(ckv_fetch_call, traceparent, 120);
AT(ckv_fetch_call, index_keys, 128);
SIZE(ckv_fetch_call, 136);

BEGINS(ckv_block_place);
AT(ckv_block_place, layers, 8);
AT(ckv_block_place, table, 16);
AT(ckv_block_place, table_count, 24);
AT(ckv_block_place, block_count, 28);
AT(ckv_block_place, block_rows, 32);
AT(ckv_block_place, reserved, 36);
AT(ckv_block_place, block_stride_bytes, 40);
AT(ckv_block_place, table_begin, 48);
AT(ckv_block_place, token_begin, 56);
AT(ckv_block_place, token_end, 64);
SIZE(ckv_block_place, 72);

BEGINS(ckv_fetch_report);
AT(ckv_fetch_report, row_count, 8);
AT(ckv_fetch_report, bytes, 16);
AT(ckv_fetch_report, elapsed_ns, 24);
AT(ckv_fetch_report, chunk_count, 32);
AT(ckv_fetch_report, not_fetched_count, 36);
SIZE(ckv_fetch_report, 40);

BEGINS(ckv_advice_call);
AT(ckv_advice_call, corpus, 8);
AT(ckv_advice_call, chunks, 16);
AT(ckv_advice_call, chunk_count, 24);
AT(ckv_advice_call, query_rows, 28);
AT(ckv_advice_call, steps, 32);
AT(ckv_advice_call, agents, 36);
AT(ckv_advice_call, select, 40);
AT(ckv_advice_call, wire, 44);
AT(ckv_advice_call, cache_free_tokens, 48);
AT(ckv_advice_call, timeout_ns, 56);
AT(ckv_advice_call, spliced, 64);
AT(ckv_advice_call, reserved, 68);
SIZE(ckv_advice_call, 72);

BEGINS(ckv_select_call);
AT(ckv_select_call, context, 8);
AT(ckv_select_call, layer, 16);
AT(ckv_select_call, token_count, 20);
AT(ckv_select_call, q, 24);
AT(ckv_select_call, weights, 32);
AT(ckv_select_call, q_dtype, 40);
AT(ckv_select_call, k, 44);
AT(ckv_select_call, own_scores, 48);
AT(ckv_select_call, own_count, 56);
AT(ckv_select_call, reserved, 60);
AT(ckv_select_call, timeout_ns, 64);
AT(ckv_select_call, traceparent, 72);
SIZE(ckv_select_call, 80);

BEGINS(ckv_select_report);
AT(ckv_select_report, bytes_sent, 8);
AT(ckv_select_report, bytes_received, 16);
AT(ckv_select_report, compute_ns_max, 24);
AT(ckv_select_report, elapsed_ns, 32);
AT(ckv_select_report, holder_count, 40);
AT(ckv_select_report, reserved, 44);
SIZE(ckv_select_report, 48);

int main(void) { return 0; }
