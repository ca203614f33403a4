// Any text as model.safetensors.index.json: what is accepted names only files of its own folder.

#include "store/formats/safetensors_index.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "proto/base/status.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto index = ckv::ParseSafetensorsIndex({reinterpret_cast<const char*>(data), size});
  if (!index.ok()) {
    CKV_CHECK(absl::IsInvalidArgument(index.status()));
    return 0;
  }
  CKV_CHECK(!index->file_of.empty() && index->file_of.size() <= ckv::kTensorCountMax);
  CKV_CHECK(index->files.size() <= ckv::kSafetensorsFileCountMax);
  for (const auto& [tensor, file] : index->file_of) {
    CKV_CHECK(!tensor.empty() && index->files.contains(file));
  }
  for (const std::string& file : index->files) {
    CKV_CHECK(!file.empty() && file != "." && file != "..");
    CKV_CHECK(file.find('/') == std::string::npos && file.find('\0') == std::string::npos);
  }
  return 0;
}
