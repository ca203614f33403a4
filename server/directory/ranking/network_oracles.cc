#include "server/directory/ranking/network_oracles.h"

#include <utility>
#include <vector>

#include "proto/base/log.h"

namespace ckv {
namespace {

// The source of all oracles, as one of them owns it.
class SharedOracleSource final : public OracleSource {
 public:
  explicit SharedOracleSource(std::shared_ptr<OracleSource> source) : source_(std::move(source)) {}
  absl::StatusOr<NetworkSnapshot> Read(const std::string& requester_host,
                                       const std::vector<std::string>& holder_hosts, Clock& clock,
                                       Instant deadline) override {
    return source_->Read(requester_host, holder_hosts, clock, deadline);
  }
  std::string Describe() const override { return source_->Describe(); }

 private:
  const std::shared_ptr<OracleSource> source_;
};

}  // namespace

NetworkOracles::NetworkOracles(std::unique_ptr<OracleSource> source, NetworkOracleOptions options)
    : options_(std::move(options)), source_(std::move(source)) {}

NetworkOracles::~NetworkOracles() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    wake_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void NetworkOracles::Start() {
  if (!thread_.joinable()) thread_ = Thread([this] { Run(); });
}

void NetworkOracles::Run() {
  while (true) {
    const absl::Status status = Refresh();
    if (!status.ok() && !failing_)
      Log().warn("{}; its last answer stays in use", std::string(status.message()));
    if (status.ok() && failing_) Log().info("the network oracle answers again");
    failing_ = !status.ok();
    absl::MutexLock lock(&mu_);
    options_.clock->Await(mu_, absl::Condition(&wake_), options_.clock->Now() + options_.period);
    if (stopping_) return;
    wake_ = false;
  }
}

std::shared_ptr<NetworkOracle> NetworkOracles::From(std::string_view host) {
  if (host.empty() || host.size() > kOracleNameBytesMax) return nullptr;
  const Instant now = options_.clock->Now();
  absl::MutexLock lock(&mu_);
  const auto found = by_host_.find(absl::string_view(host.data(), host.size()));
  if (found != by_host_.end()) {
    found->second.at = now;
    return found->second.oracle;
  }
  DropIdle(now);
  if (by_host_.size() >= kFromHostCountMax) return nullptr;
  NetworkOracleOptions options = options_;
  options.requester_host = std::string(host);
  auto oracle =
      std::make_shared<NetworkOracle>(std::make_unique<SharedOracleSource>(source_), options);
  by_host_.emplace(options.requester_host, Used{oracle, now});
  wake_ = true;
  return oracle;
}

void NetworkOracles::DropIdle(Instant now) {
  absl::erase_if(by_host_, [&](const auto& entry) { return now - entry.second.at > kIdleMax; });
}

absl::Status NetworkOracles::Refresh() {
  std::vector<std::shared_ptr<NetworkOracle>> oracles;
  {
    absl::MutexLock lock(&mu_);
    DropIdle(options_.clock->Now());
    for (const auto& [host, used] : by_host_) oracles.push_back(used.oracle);
  }
  absl::Status first;
  for (const std::shared_ptr<NetworkOracle>& oracle : oracles) {
    absl::Status status = oracle->Refresh();
    const bool ends = !status.ok() && !absl::IsNotFound(status);
    if (first.ok()) first = std::move(status);
    // A source that does not answer takes its whole timeout each time.
    if (ends) break;
  }
  return first;
}

}  // namespace ckv
