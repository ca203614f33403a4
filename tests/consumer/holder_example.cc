// Starts a holder in this process, puts a chunk, grants the lease, prints its stats and stops it.
// Exits with 0 if the holder does as server/holder/holder.h says.

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "proto/base/status.h"
#include "server/holder/holder.h"
#include "store/memory/chunk_id.h"

namespace {

absl::Status Run() {
  const std::unique_ptr<ckv::Fabric> shm = ckv::NewShmFabric(ckv::Clock::Real());
  ckv::HolderOptions options;
  options.id = {"h1"};
  options.capacity_bytes = 1 << 20;
  options.fabrics = {shm.get()};
  CKV_ASSIGN_OR_RETURN(const auto holder, ckv::Holder::Start(options));

  ckv::Geometry geometry;
  geometry.model = "example";
  geometry.layers = 2;
  geometry.d_qk = geometry.d_v = 16;
  geometry.d_rope = 4;
  geometry.softmax_scale = 0.25f;
  ckv::ChunkInfo info;
  info.token_ids = {11, 12, 13};
  info.id = ckv::ComputeChunkId(ckv::ModelFingerprint(geometry), info.parent, info.position,
                                info.token_ids);
  const std::vector<std::byte> rows(info.token_count() * geometry.row_bytes(), std::byte{7});
  info.tensor_checksums.assign(geometry.layers, ckv::ChecksumOf(rows));
  CKV_ASSIGN_OR_RETURN(ckv::ChunkPut put, holder->store().Begin(info, geometry));
  for (uint32_t layer = 0; layer < geometry.layers; ++layer)
    CKV_RETURN_IF_ERROR(put.Write(layer, /*offset_bytes=*/0, rows));
  CKV_RETURN_IF_ERROR(std::move(put).Finish());

  const ckv::Instant soon = ckv::Clock::Real()->Now() + std::chrono::seconds(10);
  holder->lease().Grant(ckv::Epoch{1}, soon);  // requesters may open sessions from here on

  const ckv::HolderStats stats = holder->stats();
  std::printf("%d chunk of %d tokens, %d sessions, %d requests\n", int(stats.table.chunk_count),
              int(stats.table.token_count), int(stats.session_count), int(stats.request_count));
  holder->Drain(soon);
  return stats.table.chunk_count == 1 ? absl::OkStatus() : absl::InternalError("it has no chunk");
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
