// Puts. Separate from the calls, because a put uses gRPC to the directory and the holders.
//
// A put is used by one thread at a time, in this order:
//   ckv_put_begin                        checks the target, counts the put as in flight
//   ckv_put_add_chunk, ckv_put_add_rows  pass chunks and rows to the CorpusWriter, up to bytes_max
//   ckv_put_finish                       publishes, and drops the corpus from the requester's view
//   ckv_put_free                         ends the count

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/bindings/c/caller_values.h"
#include "client/bindings/c/ckv_put.h"
#include "client/bindings/c/handles.h"
#include "client/bindings/c/last_error.h"
#include "client/bindings/c/struct_size.h"
#include "client/publish/corpus_writer.h"
#include "client/publish/publisher.h"
#include "proto/base/status.h"
#include "proto/corpus.h"

struct ckv_put {
  ckv_put(ckv_requester* of, uint64_t bytes_max)
      : requester(*of), publisher(of->directory, ckv::Clock::Real()), bytes_left(bytes_max) {}

  ckv_requester& requester;  // counts it as in flight
  ckv::Publisher publisher;
  uint64_t bytes_left;
  std::unique_ptr<ckv::CorpusWriter> writer;
};

namespace ckv::c {
namespace {

constexpr uint64_t kBytesMax = uint64_t{1} << 30;

absl::Status TakeBytes(ckv_put& put, uint64_t bytes) {
  if (bytes > put.bytes_left) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("put: the rows of this chunk take %d bytes, and bytes_max leaves %d", bytes,
                        put.bytes_left));
  }
  put.bytes_left -= bytes;
  return absl::OkStatus();
}

absl::Status TakeTarget(const ckv_requester& requester, const ckv_put_target& from,
                        WriteTarget& to) {
  if (from.corpus == nullptr) return Missing("corpus");
  if (from.reserved != 0 || from.reserved2 != 0)
    return absl::InvalidArgumentError("ckv_put_target: reserved is not 0");
  to.extend = {.corpus = from.corpus,
               .tenant = requester.tenant,
               .replicas = from.replicas,
               .create = from.create != nullptr};
  CorpusPolicy& policy = to.extend.policy;
  if (from.ttl_ms != 0) policy.ttl_ms = from.ttl_ms;
  if (from.quota_bytes != 0) policy.quota_bytes = from.quota_bytes;
  if (from.kept_version_count != 0) policy.kept_version_count = from.kept_version_count;
  if (from.parent != nullptr) {
    std::memcpy(to.parent.bytes.data(), from.parent, to.parent.bytes.size());
  }
  if (from.create != nullptr) {
    ckv_corpus_facts facts;
    CKV_RETURN_IF_ERROR(TakeStruct("ckv_corpus_facts", from.create, facts));
    CKV_ASSIGN_OR_RETURN(to.geometry, GeometryOf(facts));
  }
  return absl::OkStatus();
}

absl::Status Begin(ckv_requester& requester, const ckv_put_target* target, ckv_put** put) {
  ckv_put_target taken;
  CKV_RETURN_IF_ERROR(TakeStruct("ckv_put_target", target, taken));
  WriteTarget to;
  CKV_RETURN_IF_ERROR(TakeTarget(requester, taken, to));
  auto made =
      std::make_unique<ckv_put>(&requester, taken.bytes_max == 0 ? kBytesMax : taken.bytes_max);
  CKV_ASSIGN_OR_RETURN(made->writer,
                       CorpusWriter::Begin(
                           &made->publisher, to,
                           [into = made.get()](uint64_t bytes) { return TakeBytes(*into, bytes); },
                           AfterField(taken.timeout_ns)));
  requester.in_flight.fetch_add(1, std::memory_order_relaxed);
  *put = made.release();
  return absl::OkStatus();
}

ckv_put_report ReportOf(const ExtendReport& from) {
  ckv_put_report report = {};
  report.version = from.version;
  report.chunk_begin = from.chunk_begin;
  report.added_count = from.added_count;
  report.bytes_sent = from.bytes_sent();
  report.kept = from.kept.ok() ? 1 : 0;
  return report;
}

Owner OwnerOfPut(const ckv_put* put) { return put == nullptr ? Owner() : put->requester.owner; }

}  // namespace
}  // namespace ckv::c

extern "C" ckv_status ckv_put_begin(ckv_requester* requester, const ckv_put_target* target,
                                    ckv_put** put) {
  if (put != nullptr) *put = nullptr;
  return ckv::c::Guard(ckv::c::OwnerOf(requester), [&]() -> absl::Status {
    if (requester == nullptr) return ckv::c::Missing("requester");
    if (put == nullptr) return ckv::c::Missing("put");
    return ckv::c::Begin(*requester, target, put);
  });
}

extern "C" uint32_t ckv_put_row_bytes(const ckv_put* put) {
  return put == nullptr ? 0 : put->writer->geometry().row_bytes();
}

extern "C" uint32_t ckv_put_index_key_bytes(const ckv_put* put) {
  if (put == nullptr || !put->writer->geometry().index) return 0;
  return put->writer->geometry().index->key_bytes();
}

extern "C" ckv_status ckv_put_add_chunk(ckv_put* put, const ckv_put_chunk* chunk) {
  return ckv::c::Guard(ckv::c::OwnerOfPut(put), [&]() -> absl::Status {
    if (put == nullptr) return ckv::c::Missing("put");
    ckv_put_chunk taken;
    CKV_RETURN_IF_ERROR(ckv::c::TakeStruct("ckv_put_chunk", chunk, taken));
    if (taken.token_count > ckv::kChunkTokenCountMax) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "token_count: %d, limit %d", taken.token_count, ckv::kChunkTokenCountMax));
    }
    if (taken.token_count > 0 && taken.token_ids == nullptr) return ckv::c::Missing("token_ids");
    if (taken.reserved != 0) return absl::InvalidArgumentError("ckv_put_chunk: reserved is not 0");
    CKV_ASSIGN_OR_RETURN(ckv::ExtraKeys keys,
                         ckv::c::ExtraKeysFrom(taken.extra_keys, taken.extra_key_count));
    return put->writer->AddChunk(
        {.token_ids = {taken.token_ids, taken.token_ids + taken.token_count},
         .standalone = taken.standalone != 0,
         .position = taken.position,
         .extra_keys = std::move(keys)});
  });
}

extern "C" ckv_status ckv_put_add_rows(ckv_put* put, uint32_t layer, uint64_t offset_bytes,
                                       const void* rows, uint64_t bytes) {
  return ckv::c::Guard(ckv::c::OwnerOfPut(put), [&]() -> absl::Status {
    if (put == nullptr) return ckv::c::Missing("put");
    if (rows == nullptr) return ckv::c::Missing("rows");
    CKV_ASSIGN_OR_RETURN(const uint32_t tensor, ckv::TensorOf(put->writer->geometry(), layer,
                                                              /*index_keys=*/false));
    return put->writer->AddRows(tensor, offset_bytes, {static_cast<const std::byte*>(rows), bytes});
  });
}

extern "C" ckv_status ckv_put_add_index_keys(ckv_put* put, uint32_t layer, uint64_t offset_bytes,
                                             const void* keys, uint64_t bytes) {
  return ckv::c::Guard(ckv::c::OwnerOfPut(put), [&]() -> absl::Status {
    if (put == nullptr) return ckv::c::Missing("put");
    if (keys == nullptr) return ckv::c::Missing("keys");
    CKV_ASSIGN_OR_RETURN(const uint32_t tensor, ckv::TensorOf(put->writer->geometry(), layer,
                                                              /*index_keys=*/true));
    return put->writer->AddRows(tensor, offset_bytes, {static_cast<const std::byte*>(keys), bytes});
  });
}

extern "C" ckv_status ckv_put_finish(ckv_put* put, uint64_t timeout_ns, ckv_put_report* report) {
  return ckv::c::Guard(ckv::c::OwnerOfPut(put), [&]() -> absl::Status {
    if (put == nullptr) return ckv::c::Missing("put");
    // Checked first, because nothing may fail once the chunks are published.
    if (report != nullptr) {
      CKV_RETURN_IF_ERROR(ckv::c::GiveStruct("ckv_put_report", ckv_put_report{}, report));
    }
    CKV_ASSIGN_OR_RETURN(const ckv::ExtendReport done,
                         put->writer->Finish(ckv::c::After(timeout_ns)));
    // So that the next ckv_resolve sees the chunks, even before the directory's notification
    // arrives.
    put->requester.requester->Invalidate(put->writer->target().corpus);
    if (report == nullptr) return absl::OkStatus();
    return ckv::c::GiveStruct("ckv_put_report", ckv::c::ReportOf(done), report);
  });
}

extern "C" uint32_t ckv_put_ids(const ckv_put* put, uint8_t* ids, uint32_t capacity) {
  if (put == nullptr) return 0;
  const std::vector<ckv::PlannedChunk>& chunks = put->writer->chunks();
  for (size_t i = 0; ids != nullptr && i < std::min<size_t>(capacity, chunks.size()); ++i) {
    std::memcpy(ids + i * sizeof(chunks[i].id.bytes), chunks[i].id.bytes.data(),
                sizeof(chunks[i].id.bytes));
  }
  return static_cast<uint32_t>(chunks.size());
}

extern "C" void ckv_put_free(ckv_put* put) {
  if (put == nullptr) return;
  put->requester.in_flight.fetch_sub(1, std::memory_order_release);
  delete put;
}
