// Puts a chunk into a store, pins it, reads a row and drops it.

#include <cstdio>
#include <span>
#include <vector>

#include "proto/base/status.h"
#include "store/chunk_store.h"
#include "store/memory/chunk_id.h"

namespace {

absl::Status Run() {
  ckv::ChunkStoreOptions options;
  options.capacity_bytes = 1 << 20;  // without a path, chunks are in memory only
  CKV_ASSIGN_OR_RETURN(const auto store, ckv::ChunkStore::Open(options));

  ckv::Geometry geometry;
  geometry.model = "example";
  geometry.layers = 2;
  geometry.d_qk = 16;
  geometry.d_v = 12;
  geometry.d_rope = 4;
  geometry.softmax_scale = 0.25f;
  ckv::ChunkInfo info;
  info.token_ids = {11, 12, 13};
  info.id = ckv::ComputeChunkId(ckv::ModelFingerprint(geometry), info.parent, info.position,
                                info.token_ids);
  const std::vector<std::byte> rows(info.token_count() * geometry.row_bytes(), std::byte{7});
  info.tensor_checksums.assign(geometry.layers, ckv::ChecksumOf(rows));

  CKV_ASSIGN_OR_RETURN(ckv::ChunkPut put, store->Begin(info, geometry, "tenant-a"));
  for (uint32_t layer = 0; layer < geometry.layers; ++layer)
    CKV_RETURN_IF_ERROR(put.Write(layer, /*offset_bytes=*/0, rows));
  CKV_RETURN_IF_ERROR(std::move(put).Finish());

  CKV_ASSIGN_OR_RETURN(const auto chunk, store->table().Find(info.id, geometry, "tenant-a"));
  auto pin = store->table().Pin(chunk);
  if (absl::IsUnavailable(pin.status())) pin = store->Load(chunk);
  if (!pin.ok()) return pin.status();
  const auto row = pin->chunk().layer(1).subspan(2 * geometry.row_bytes(), geometry.row_bytes());
  std::printf("token 2 of layer 1 begins with byte %d\n", static_cast<int>(row[0]));

  CKV_RETURN_IF_ERROR(store->Drop(info.id));
  return store->table().Contains(info.id) ? absl::InternalError("it is still here")
                                          : absl::OkStatus();
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
