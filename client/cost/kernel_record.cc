#include "client/cost/kernel_record.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "absl/strings/escaping.h"
#include "proto/base/sha256.h"
#include "proto/base/status.h"
#include "store/formats/json.h"
#include "store/formats/json_fields.h"

namespace ckv {
namespace {

constexpr int kDepthMax = 2;
constexpr std::string_view kChecksum = "sha256 ";
constexpr size_t kHexBytes = 64;

// The last line of a file that begins with `text`.
std::string ChecksumLine(std::string_view text) {
  Sha256 sha;
  sha.Append(std::as_bytes(std::span(text)));
  const std::array<uint8_t, 32> digest = sha.Finish();
  return std::string(kChecksum) +
         absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()}) +
         "\n";
}

}  // namespace

nlohmann::ordered_json KernelRecordJson(const KernelRecord& record) {
  return {{"target", record.target},
          {"f32_gflop_per_s", record.rates.f32},
          {"amx_gflop_per_s", record.rates.amx},
          {"avx512_bf16_gflop_per_s", record.rates.dot},
          {"machine", record.signature}};
}

absl::StatusOr<KernelRecord> ReadKernelRecord(const nlohmann::json& object) {
  KernelRecord record;
  const JsonFields fields(object, "kernel: ");
  CKV_RETURN_IF_ERROR(fields.CheckKeys(
      {"target", "f32_gflop_per_s", "amx_gflop_per_s", "avx512_bf16_gflop_per_s", "machine"}));
  CKV_RETURN_IF_ERROR(fields.Read("target", record.target));
  CKV_RETURN_IF_ERROR(fields.Read("machine", record.signature));
  for (const auto& [name, rate] : {std::pair("f32_gflop_per_s", &record.rates.f32),
                                   std::pair("amx_gflop_per_s", &record.rates.amx),
                                   std::pair("avx512_bf16_gflop_per_s", &record.rates.dot)}) {
    CKV_RETURN_IF_ERROR(fields.Read(name, *rate));
    if (!std::isfinite(*rate) || *rate < 0) return fields.Refuse(name, "negative or not finite");
  }
  return record;
}

std::string FormatKernelRecord(const KernelRecord& record) {
  const std::string text = KernelRecordJson(record).dump(
                               2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
                           "\n";
  return text + ChecksumLine(text);
}

absl::StatusOr<KernelRecord> ParseKernelRecord(std::string_view text) {
  constexpr size_t kLineBytes = kChecksum.size() + kHexBytes + 1;
  if (text.size() <= kLineBytes || text.size() > kKernelRecordBytesMax)
    return absl::DataLossError("its length is not that of a kept choice");
  const std::string_view body = text.substr(0, text.size() - kLineBytes);
  if (text.substr(body.size()) != ChecksumLine(body))
    return absl::DataLossError("its checksum is wrong");
  CKV_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(body, kDepthMax));
  return ReadKernelRecord(json);
}

}  // namespace ckv
