#include "store/manifest.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "proto/status.h"
#include "store/geometry_json.h"
#include "store/json.h"
#include "store/json_fields.h"

namespace ckv {
namespace {

using nlohmann::json;

absl::StatusOr<ChunkPlacement> DecodeChunk(const json& object, size_t ordinal) {
  const JsonFields fields(object, absl::StrFormat("manifest: chunk %d: ", ordinal));
  CKV_RETURN_IF_ERROR(fields.CheckKeys({"id", "parent", "token_count", "position", "holders"}));
  ChunkPlacement chunk;
  CKV_RETURN_IF_ERROR(fields.Read("id", chunk.id));
  CKV_RETURN_IF_ERROR(fields.Read("parent", chunk.parent));
  CKV_RETURN_IF_ERROR(fields.Read("token_count", chunk.token_count));
  CKV_RETURN_IF_ERROR(fields.Read("position", chunk.position));
  const json& holders = fields.At("holders");
  if (!holders.is_array()) return fields.Refuse("holders", "must be an array");
  for (const json& holder : holders) {
    if (!holder.is_string()) return fields.Refuse("holders", "must be strings");
    chunk.holders.push_back({holder.get<std::string>()});
  }
  return chunk;
}

}  // namespace

absl::StatusOr<std::string> EncodeManifest(const Corpus& corpus) {
  CKV_RETURN_IF_ERROR(ValidateCorpus(corpus));  // so every string is ASCII, and dump cannot fail
  json chunks = json::array();
  for (const ChunkPlacement& chunk : corpus.chunks) {
    json holders = json::array();
    for (const HolderId& holder : chunk.holders) holders.push_back(holder.name);
    chunks.push_back({{"id", chunk.id.ToHex()},
                      {"parent", chunk.parent.ToHex()},
                      {"token_count", chunk.token_count},
                      {"position", chunk.position},
                      {"holders", std::move(holders)}});
  }
  const json document = {{"schema_version", kManifestSchemaVersion},
                         {"name", corpus.name},
                         {"tenant", corpus.tenant},
                         {"version", corpus.version},
                         {"geometry", EncodeGeometry(corpus.geometry)},
                         {"chunks", std::move(chunks)}};
  std::string text = document.dump(1) + "\n";
  if (text.size() > kManifestBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("manifest: %d bytes, limit %d", text.size(), kManifestBytesMax));
  }
  return text;
}

absl::StatusOr<Corpus> DecodeManifest(std::string_view text) {
  if (text.size() > kManifestBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("manifest: %d bytes, limit %d", text.size(), kManifestBytesMax));
  }
  auto document = ParseJson(text, /*depth_max=*/4);
  if (!document.ok()) return Annotate(document.status(), "manifest");
  const JsonFields fields(*document, "manifest: ");
  if (!document->is_object() || !fields.Has("schema_version")) {
    return fields.Refuse("schema_version", "is missing");
  }
  // Before the other keys: a later version may have others.
  uint64_t schema_version = 0;
  CKV_RETURN_IF_ERROR(fields.Read("schema_version", schema_version));
  if (schema_version > kManifestSchemaVersion) {
    return absl::FailedPreconditionError(
        absl::StrFormat("manifest: schema version %d, this ckv reads up to %d", schema_version,
                        kManifestSchemaVersion));
  }
  if (schema_version == 0) return fields.Refuse("schema_version", "0 is no version");
  CKV_RETURN_IF_ERROR(
      fields.CheckKeys({"schema_version", "name", "tenant", "version", "geometry", "chunks"}));
  Corpus corpus;
  CKV_RETURN_IF_ERROR(fields.Read("name", corpus.name));
  CKV_RETURN_IF_ERROR(fields.Read("tenant", corpus.tenant));
  CKV_RETURN_IF_ERROR(fields.Read("version", corpus.version));
  CKV_ASSIGN_OR_RETURN(corpus.geometry,
                       DecodeGeometry(fields.At("geometry"), "manifest: geometry."));
  const json& chunks = fields.At("chunks");
  if (!chunks.is_array()) return fields.Refuse("chunks", "must be an array");
  corpus.chunks.reserve(chunks.size());
  for (const json& object : chunks) {
    CKV_ASSIGN_OR_RETURN(ChunkPlacement chunk, DecodeChunk(object, corpus.chunks.size()));
    corpus.chunks.push_back(std::move(chunk));
  }
  CKV_RETURN_IF_ERROR(ValidateCorpus(corpus));
  return corpus;
}

absl::Status CheckChain(const Corpus& corpus) {
  absl::flat_hash_map<ChunkId, uint64_t> end_of;  // the position after a chunk's last token
  for (size_t i = 0; i < corpus.chunks.size(); ++i) {
    const ChunkPlacement& chunk = corpus.chunks[i];
    const auto refuse = [i](std::string_view what) {
      return absl::InvalidArgumentError(absl::StrFormat("corpus: chunk %d: %s", i, what));
    };
    if (!chunk.parent.IsZero()) {
      const auto parent = end_of.find(chunk.parent);
      if (parent == end_of.end()) {
        return refuse(
            absl::StrFormat("its parent %s is not an earlier chunk", chunk.parent.ShortHex()));
      }
      if (chunk.position != parent->second) {
        return refuse(
            absl::StrFormat("position %d, its parent ends at %d", chunk.position, parent->second));
      }
    }
    end_of.emplace(chunk.id, chunk.position + chunk.token_count);
  }
  return absl::OkStatus();
}

}  // namespace ckv
