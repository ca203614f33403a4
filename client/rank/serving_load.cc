#include "client/rank/serving_load.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/host_port.h"
#include "proto/base/status.h"
#include "proto/corpus.h"

namespace ckv {

absl::Status ValidateLoadNumber(std::string_view field, double value) {
  // Written so that NaN fails.
  if (value >= 0 && value <= kLoadNumberMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %g is not within [0, %g]", field, value, kLoadNumberMax));
}

absl::Status ValidateNotice(const LoadNotice& notice) {
  CKV_RETURN_IF_ERROR(ValidateName("name", notice.name));
  if (notice.name.empty()) return absl::InvalidArgumentError("name: it is empty");
  if (const auto address = HostPort::Parse(notice.address, /*port_min=*/1); !address.ok())
    return Annotate(address.status(), "address");
  if (notice.host.size() > HostPort::kTextBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("host: %d bytes, limit %d", notice.host.size(), HostPort::kTextBytesMax));
  }
  if (notice.ttl < Duration(0)) return absl::InvalidArgumentError("lease_ttl_ms: it is negative");
  if (notice.cached && notice.cached->size() > kDigestChunkCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("cached: %d chunks, limit %d",
                                                      notice.cached->size(), kDigestChunkCountMax));
  }
  const ServingLoad& load = notice.load;
  const std::pair<const char*, double> numbers[] = {
      {"load.free_bytes", load.free_bytes},
      {"load.queued", load.queued},
      {"load.batch", load.batch},
      {"load.batch_max", load.batch_max},
      {"load.iteration_base_us", load.iteration_base_us},
      {"load.iteration_request_us", load.iteration_request_us}};
  for (const auto& [field, value] : numbers) CKV_RETURN_IF_ERROR(ValidateLoadNumber(field, value));
  return absl::OkStatus();
}

}  // namespace ckv
