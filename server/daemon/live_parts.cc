#include "server/daemon/live_parts.h"

#include "absl/strings/str_format.h"
#include "server/daemon/server_probe_stub.h"

namespace ckv {

std::vector<LivePart> LivePartsOf(const Holder* holder, RequesterServiceImpl* requester,
                                  const std::string& server) {
  std::vector<LivePart> parts;
  // It turns by itself, and knows no poke.
  if (holder != nullptr) {
    parts.push_back({"the dispatcher", nullptr, [holder] { return holder->turn_count(); }});
  }
  if (requester != nullptr) {
    parts.push_back({"the loop of streams", [requester] { requester->WakeStreams(); },
                     [requester] { return requester->stream_turn_count(); }});
  }
  auto probe = std::make_shared<ServerProbe>(server, ServerProbe::Connection::kKept);
  parts.push_back(
      {"the gRPC server", [probe] { probe->Send(); }, [probe] { return probe->answer_count(); }});
  return parts;
}

std::string DescribeDaemon(const std::vector<std::unique_ptr<Registration>>& registrations,
                           bool ready, bool serving, const std::string& address) {
  if (ready && serving) return absl::StrFormat("serves at %s", address);
  absl::Status why;
  for (const auto& registration : registrations) why.Update(registration->report().last_error);
  const std::string reason = why.ok() ? "" : absl::StrFormat(": %s", std::string(why.message()));
  if (!ready) return absl::StrFormat("waits to be registered%s", reason);
  return absl::StrFormat("does not serve at %s: its lease has run out%s", address, reason);
}

}  // namespace ckv
