#include "client/tools/ctl/fleet/garbage.h"

#include <algorithm>
#include <string>

#include "proto/base/status.h"
#include "proto/corpus.h"

namespace ckv::ctl {
namespace {

constexpr uint32_t kPageChunks = kIdsPerCallMax;  // CountReferences takes no more at a time

uint64_t Milliseconds(Duration duration) {
  return static_cast<uint64_t>(duration / std::chrono::milliseconds(1));
}

absl::Status Sort(const v1::ListChunksReply& page, const std::vector<uint32_t>& references,
                  uint64_t grace_ms, Garbage& garbage) {
  GarbageTally& tally = garbage.tally;
  for (int i = 0; i < page.chunks_size(); ++i) {
    const v1::ListChunksReply::Chunk& chunk = page.chunks(i);
    ++tally.chunk_count;
    if (references[static_cast<size_t>(i)] > 0) {
      ++tally.placed_count;
    } else if (chunk.kept()) {
      ++tally.kept_count;
    } else if (chunk.idle_ms() < grace_ms) {
      ++tally.young_count;
    } else {
      CKV_ASSIGN_OR_RETURN(const ChunkId id, ChunkId::FromBytes(chunk.id()));
      garbage.chunks.push_back({id, chunk.bytes()});
      ++tally.garbage_count;
      tally.garbage_bytes += chunk.bytes();
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Garbage> FindGarbage(Fleet& fleet, const Member& holder, Duration grace) {
  Garbage garbage;
  garbage.holder = holder;
  const auto stub = ConnectHolder(holder);
  v1::ListChunksRequest request;
  request.set_count_max(kPageChunks);
  v1::ListChunksReply page;
  std::vector<std::string> ids;  // ids of the page
  do {
    page.Clear();
    grpc::ClientContext context;
    fleet.Prepare(context);
    CKV_RETURN_IF_ERROR(
        HolderError(stub->ListChunks(&context, request, &page), holder, "ListChunks"));
    if (page.chunks_size() == 0) break;
    ids.clear();
    for (const v1::ListChunksReply::Chunk& chunk : page.chunks()) ids.push_back(chunk.id());
    CKV_ASSIGN_OR_RETURN(const std::vector<uint32_t> references,
                         fleet.CountReferences(ids, holder.id));
    CKV_RETURN_IF_ERROR(Sort(page, references, Milliseconds(grace), garbage));
    request.set_after(page.chunks(page.chunks_size() - 1).id());
  } while (page.more());
  return garbage;
}

absl::Status DropGarbage(Fleet& fleet, Garbage& garbage, Duration grace,
                         const std::function<void(uint64_t)>& on_chunks) {
  const auto stub = ConnectHolder(garbage.holder);
  v1::DropChunkRequest request;
  // 0 would be a drop of whatever it is.
  request.set_idle_min_ms(std::max<uint64_t>(1, Milliseconds(grace)));
  for (const Garbage::Chunk& chunk : garbage.chunks) {
    request.set_id(std::string(chunk.id.AsBytes()));
    grpc::ClientContext context;
    fleet.Prepare(context);
    v1::DropChunkReply reply;
    absl::Status status =
        HolderError(stub->DropChunk(&context, request, &reply), garbage.holder, "DropChunk");
    on_chunks(1);
    if (status.ok()) {
      ++garbage.tally.dropped_count;
      garbage.tally.dropped_bytes += chunk.bytes;
    } else if (absl::IsFailedPrecondition(status)) {
      ++garbage.tally.touched_count;
    } else if (!absl::IsNotFound(status)) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace ckv::ctl
