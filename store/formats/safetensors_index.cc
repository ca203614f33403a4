#include "store/formats/safetensors_index.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "store/formats/json.h"
#include "store/formats/safetensors_header.h"

namespace ckv {
namespace {

constexpr size_t kNameBytesMax = 255;  // NAME_MAX of Linux's file systems

absl::Status Refuse(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrFormat("index: %s", what));
}

// Only a file of the folder itself: nothing that leads out of it.
bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name.size() <= kNameBytesMax && name != "." && name != ".." &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

absl::Status ReadTotal(const nlohmann::json& document, SafetensorsIndex& index) {
  const auto metadata = document.find("metadata");
  if (metadata == document.end()) return absl::OkStatus();
  if (!metadata->is_object()) return Refuse("metadata must be an object");
  const auto total = metadata->find("total_size");
  if (total == metadata->end()) return absl::OkStatus();
  if (!total->is_number_unsigned()) return Refuse("metadata.total_size must be a whole number");
  index.total_bytes = total->get<uint64_t>();
  return absl::OkStatus();
}

// Puts the tensors and metadata of one file into the set.
absl::Status Merge(const SafetensorsIndex& index, const std::string& name,
                   const SafetensorsFile& file, SafetensorsSet& set) {
  for (const auto& [tensor, view] : file.tensors()) {
    const auto place = index.file_of.find(tensor);
    if (place == index.file_of.end()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "tensor %s: is not in the index; a file holds nothing else", QuotedName(tensor)));
    }
    if (place->second != name) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor %s: is here, and the index places it in %s", QuotedName(tensor),
                          QuotedName(place->second)));
    }
    set.tensors.emplace(tensor, view);
  }
  for (const auto& [key, value] : file.metadata()) {
    const auto [there, added] = set.metadata.emplace(key, value);
    if (!added && there->second != value) {
      return absl::InvalidArgumentError(
          absl::StrFormat("metadata %s: %s here, %s in another file of the folder", QuotedName(key),
                          QuotedName(value), QuotedName(there->second)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(std::string_view json) {
  if (json.size() > kSafetensorsIndexBytesMax) {
    return Refuse(absl::StrFormat("%d bytes, limit %d", json.size(), kSafetensorsIndexBytesMax));
  }
  // Exporters write what they like into metadata; three levels are more than any does.
  auto document = ParseJson(json, /*depth_max=*/3);
  if (!document.ok()) return Annotate(document.status(), "index");
  if (!document->is_object()) return Refuse("must be an object");
  for (const auto& entry : document->items()) {
    if (entry.key() != "metadata" && entry.key() != "weight_map") {
      return Refuse(absl::StrFormat("%s is not known", QuotedName(entry.key())));
    }
  }
  SafetensorsIndex index;
  CKV_RETURN_IF_ERROR(ReadTotal(*document, index));
  const auto map = document->find("weight_map");
  if (map == document->end() || !map->is_object() || map->empty()) {
    return Refuse("weight_map: must be an object of tensors and their files");
  }
  if (map->size() > kTensorCountMax) {
    return Refuse(absl::StrFormat("%d tensors, limit %d", map->size(), kTensorCountMax));
  }
  for (const auto& entry : map->items()) {
    if (entry.key().empty() || entry.key().size() > kNameBytesMax) {
      return Refuse(
          absl::StrFormat("weight_map: %s is no name of a tensor; it must have 1 to %d "
                          "bytes",
                          QuotedName(entry.key()), kNameBytesMax));
    }
    if (!entry.value().is_string() ||
        !IsPlainFileName(entry.value().get_ref<const std::string&>())) {
      return Refuse(absl::StrFormat(
          "weight_map: %s: its file must be a plain name in the folder of the index",
          QuotedName(entry.key())));
    }
    index.files.insert(entry.value().get<std::string>());
    index.file_of.emplace(entry.key(), entry.value().get<std::string>());
  }
  if (index.files.size() > kSafetensorsFileCountMax) {
    return Refuse(
        absl::StrFormat("%d files, limit %d", index.files.size(), kSafetensorsFileCountMax));
  }
  return index;
}

absl::StatusOr<SafetensorsSet> OpenSafetensorsFolder(const std::string& folder,
                                                     FileReading reading) {
  const std::string path = absl::StrFormat("%s/%s", folder, kSafetensorsIndexName);
  CKV_ASSIGN_OR_RETURN(const std::shared_ptr<const FileBytes> text,
                       FileBytes::Open(path, FileReading::kWhole, kSafetensorsIndexBytesMax));
  const auto parsed = ParseSafetensorsIndex(
      {reinterpret_cast<const char*>(text->bytes().data()), text->bytes().size()});
  if (!parsed.ok()) return Annotate(parsed.status(), path);
  SafetensorsSet set;
  for (const std::string& name : parsed->files) {
    const std::string file_path = absl::StrFormat("%s/%s", folder, name);
    CKV_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(file_path, reading));
    CKV_RETURN_IF_ERROR(Annotate(Merge(*parsed, name, file, set), file_path));
    set.files.push_back(std::move(file));
  }
  for (const auto& [tensor, name] : parsed->file_of) {
    if (set.tensors.contains(tensor)) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s/%s: tensor %s: is missing, and the index places it here", folder, name,
                        QuotedName(tensor)));
  }
  uint64_t total_bytes = 0;
  for (const auto& [name, view] : set.tensors) total_bytes += view.data.size();
  if (parsed->total_bytes.value_or(total_bytes) != total_bytes) {
    return Annotate(Refuse(absl::StrFormat("metadata.total_size is %d, the tensors have %d bytes",
                                           *parsed->total_bytes, total_bytes)),
                    path);
  }
  return set;
}

}  // namespace ckv
