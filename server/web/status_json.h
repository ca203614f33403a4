// How a process and what it knows are, as JSON for the status page and for scripts.
//
// It is small however large the fleet is: lists are cut at the limits below, and say how many there
// are in all. Times are microseconds if their name ends in _us and
// seconds if it ends in _s; sizes are bytes. Counters count since the process started, so a reader
// takes the difference of two.
//
//   name, roles, version, commit, kernel, uptime_s, serves, status
//   findings   [{code, severity, subject, what, remedy}]  the worst first, as ckvctl health
//   leases     [{role, held, epoch, error}]                       of this process
//   latency    [{of, counts, sum_us}]  counts[i]: durations of at most first_us * 2^i that no
//              count before has; the last one: all that are longer
//   holder     {chunks, cold_chunks, tokens, used_bytes, capacity_bytes, sessions, lanes, queues,
//              requests, query_rows, kernel_calls, compute_us, refused, errors}
//   requester  {attends, errors, route, cached, fetch, local, prefetch, local_cache_bytes, holders,
//   hottest} directory  {members, member_count, ended, missing, corpora, corpus_count,
//   tenant_corpus_count,
//              unproven_count, replica_count, missing_chunk_count, missing_copy_count, log}
//              corpora: those that lack chunks or copies first, with both numbers

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "server/web/web_sources.h"

namespace ckv {

// Together they keep StatusJson below 100 KB. Names are of 128 bytes at most.
inline constexpr size_t kShownMemberCountMax = 100;
inline constexpr size_t kShownCorpusCountMax = 64;
inline constexpr size_t kShownFindingCountMax = 64;

// By any thread. Takes the directory's lock for as long as a list of its corpora does.
std::string StatusJson(const WebSources& sources, bool serves, std::string_view status);

}  // namespace ckv
