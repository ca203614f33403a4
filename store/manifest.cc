#include "store/manifest.h"

#include <initializer_list>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "proto/status.h"
#include "store/json.h"
#include "store/safetensors_header.h"

namespace ckv {
namespace {

using nlohmann::json;

// Reads the fields of one object, and says where in the manifest a wrong one is.
class Fields {
 public:
  Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

  absl::Status Refuse(std::string_view key, std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrFormat("manifest: %s%s: %s", where_, key, what));
  }

  // The object has these keys; `optional` may be missing; no others.
  absl::Status CheckKeys(std::initializer_list<std::string_view> keys,
                         std::string_view optional = "") const {
    if (!object_.is_object()) return Refuse("", "must be an object");
    for (const std::string_view key : keys) {
      if (key != optional && !object_.contains(key)) return Refuse(key, "is missing");
    }
    for (const auto& entry : object_.items()) {
      bool known = false;
      for (const std::string_view key : keys) known |= entry.key() == key;
      if (!known) return Refuse(QuotedName(entry.key()), "is not known");
    }
    return absl::OkStatus();
  }

  bool Has(const char* key) const { return object_.contains(key); }
  const json& At(const char* key) const { return *object_.find(key); }

  absl::Status Read(const char* key, std::string& value) const {
    if (!At(key).is_string()) return Refuse(key, "must be a string");
    value = At(key).get_ref<const std::string&>();
    return absl::OkStatus();
  }

  absl::Status Read(const char* key, uint64_t& value) const {
    if (!At(key).is_number_unsigned()) return Refuse(key, "must be a whole number");
    value = At(key).get<uint64_t>();
    return absl::OkStatus();
  }

  absl::Status Read(const char* key, uint32_t& value) const {
    uint64_t wide = 0;
    CKV_RETURN_IF_ERROR(Read(key, wide));
    if (wide > UINT32_MAX) return Refuse(key, "must be less than 2^32");
    value = static_cast<uint32_t>(wide);
    return absl::OkStatus();
  }

  absl::Status Read(const char* key, double& value) const {
    if (!At(key).is_number()) return Refuse(key, "must be a number");
    value = At(key).get<double>();
    return absl::OkStatus();
  }

  absl::Status Read(const char* key, ChunkId& value) const {
    std::string hex;
    CKV_RETURN_IF_ERROR(Read(key, hex));
    const auto id = ChunkId::FromHex(hex);
    if (!id.ok()) return Refuse(key, std::string(id.status().message()));
    value = *id;
    return absl::OkStatus();
  }

 private:
  const json& object_;
  std::string where_;
};

json EncodeGeometry(const Geometry& g) {
  json object = {
      {"model", g.model},
      {"revision", g.revision},
      {"layers", g.layers},
      {"d_qk", g.d_qk},
      {"d_v", g.d_v},
      {"d_rope", g.d_rope},
      {"dtype", g.dtype == RowDtype::kBf16 ? "bf16" : "fp8_ds_mla"},
      {"rope_style", g.rope.style == RopeStyle::kNone          ? "none"
                     : g.rope.style == RopeStyle::kInterleaved ? "interleaved"
                                                               : "half"},
      {"rope_theta", g.rope.theta},
      {"softmax_scale", double{g.softmax_scale}},  // exact both ways
  };
  if (g.rope.yarn) {
    const YarnParams& y = *g.rope.yarn;
    object["yarn"] = {
        {"factor", y.factor},       {"original_max_position", y.original_max_position},
        {"beta_fast", y.beta_fast}, {"beta_slow", y.beta_slow},
        {"mscale", y.mscale},       {"mscale_all_dim", y.mscale_all_dim}};
  }
  return object;
}

absl::StatusOr<YarnParams> DecodeYarn(const json& object) {
  const Fields fields(object, "geometry.yarn.");
  CKV_RETURN_IF_ERROR(fields.CheckKeys(
      {"factor", "original_max_position", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}));
  YarnParams yarn;
  CKV_RETURN_IF_ERROR(fields.Read("factor", yarn.factor));
  CKV_RETURN_IF_ERROR(fields.Read("original_max_position", yarn.original_max_position));
  CKV_RETURN_IF_ERROR(fields.Read("beta_fast", yarn.beta_fast));
  CKV_RETURN_IF_ERROR(fields.Read("beta_slow", yarn.beta_slow));
  CKV_RETURN_IF_ERROR(fields.Read("mscale", yarn.mscale));
  CKV_RETURN_IF_ERROR(fields.Read("mscale_all_dim", yarn.mscale_all_dim));
  return yarn;
}

absl::StatusOr<Geometry> DecodeGeometry(const json& object) {
  const Fields fields(object, "geometry.");
  CKV_RETURN_IF_ERROR(
      fields.CheckKeys({"model", "revision", "layers", "d_qk", "d_v", "d_rope", "dtype",
                        "rope_style", "rope_theta", "softmax_scale", "yarn"},
                       "yarn"));
  Geometry g;
  std::string dtype, style;
  double softmax_scale = 0;
  CKV_RETURN_IF_ERROR(fields.Read("model", g.model));
  CKV_RETURN_IF_ERROR(fields.Read("revision", g.revision));
  CKV_RETURN_IF_ERROR(fields.Read("layers", g.layers));
  CKV_RETURN_IF_ERROR(fields.Read("d_qk", g.d_qk));
  CKV_RETURN_IF_ERROR(fields.Read("d_v", g.d_v));
  CKV_RETURN_IF_ERROR(fields.Read("d_rope", g.d_rope));
  CKV_RETURN_IF_ERROR(fields.Read("dtype", dtype));
  CKV_RETURN_IF_ERROR(fields.Read("rope_style", style));
  CKV_RETURN_IF_ERROR(fields.Read("rope_theta", g.rope.theta));
  CKV_RETURN_IF_ERROR(fields.Read("softmax_scale", softmax_scale));
  g.softmax_scale = static_cast<float>(softmax_scale);
  if (dtype != "bf16" && dtype != "fp8_ds_mla") {
    return fields.Refuse("dtype", "must be bf16 or fp8_ds_mla");
  }
  g.dtype = dtype == "bf16" ? RowDtype::kBf16 : RowDtype::kFp8DsMla;
  if (style == "none") {
    g.rope.style = RopeStyle::kNone;
  } else if (style == "interleaved" || style == "half") {
    g.rope.style = style == "half" ? RopeStyle::kHalfSplit : RopeStyle::kInterleaved;
  } else {
    return fields.Refuse("rope_style", "must be none, interleaved or half");
  }
  if (fields.Has("yarn")) {
    CKV_ASSIGN_OR_RETURN(g.rope.yarn, DecodeYarn(fields.At("yarn")));
  }
  return g;
}

absl::StatusOr<ChunkPlacement> DecodeChunk(const json& object, size_t ordinal) {
  const Fields fields(object, absl::StrFormat("chunk %d: ", ordinal));
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
  const Fields fields(*document, "");
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
  CKV_ASSIGN_OR_RETURN(corpus.geometry, DecodeGeometry(fields.At("geometry")));
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
