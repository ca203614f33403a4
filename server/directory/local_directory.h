// The directory of the same process, as its requester uses it.

#pragma once

#include <string_view>
#include <vector>

#include "server/directory/directory_state.h"
#include "transport/control.h"

namespace ckv {

// Thread-safe. `state` must outlive it.
class LocalDirectory final : public DirectoryControl {
 public:
  // `for_calls` as for DirectoryState::Get.
  explicit LocalDirectory(DirectoryState* state, bool for_calls = true)
      : state_(state), for_calls_(for_calls) {}

  absl::StatusOr<Corpus> GetCorpus(std::string_view name, std::string_view tenant,
                                   Instant deadline) override;
  absl::StatusOr<std::vector<Member>> ListMembers(Instant deadline) override;
  absl::StatusOr<std::vector<Corpus>> LocateChunk(const ChunkId& id, std::string_view tenant,
                                                  Instant deadline) override;

  absl::StatusOr<TenantKey> TenantKeyOf(std::string_view tenant, Instant deadline) override;
  absl::StatusOr<PromptChunks> FindPrompt(std::span<const uint64_t> heads,
                                          const std::optional<ChunkId>& model,
                                          std::string_view tenant, Instant deadline) override;

 private:
  DirectoryState* const state_;
  const bool for_calls_;
};

}  // namespace ckv
