// A ckvd that keeps a port of its own across restarts, for tests of what its store survives.

#pragma once

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "tests/e2e/process.h"
#include "tests/server/services/control_client.h"
#include "tests/support/temp_folder.h"

namespace ckv::test {

inline Instant After(Duration duration) { return Clock::Real()->Now() + duration; }
// A daemon is up in 50 ms; a loaded machine under a sanitizer gets its time.
inline constexpr Duration kStartTime = std::chrono::seconds(30);

// A reserved port on 127.0.0.1. While this object lives, no process that requests any free port
// there, or of all addresses, gets it. The port is bound by a socket that does not listen. Both
// sides set SO_REUSEADDR, so ckvd can bind the port too. Without it, a killed ckvd could find its
// port taken when it restarts. Even the listener of its own data path could take it: that requests
// any port, before the control plane listens.
class HeldPort {
 public:
  HeldPort() {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int one = 1;
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    CKV_CHECK(setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0 &&
              bind(fd_, reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
              getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length) == 0);
    number_ = ntohs(address.sin_port);
  }
  ~HeldPort() { close(fd_); }
  HeldPort(const HeldPort&) = delete;
  HeldPort& operator=(const HeldPort&) = delete;

  uint16_t number() const { return number_; }

 private:
  int fd_ = -1;
  uint16_t number_ = 0;
};

inline bool Listens(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  const bool listens =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return listens;
}

class OneDaemon {
 public:
  // `arguments` are added to the role, the name and the address.
  OneDaemon(const std::string& roles, std::vector<std::string> arguments, std::string name = "one")
      : name_(std::move(name)), arguments_(std::move(arguments)) {
    const bool has_level = std::any_of(arguments_.begin(), arguments_.end(),
                                       [](const auto& a) { return a.starts_with("--log-level="); });
    if (!has_level) arguments_.emplace_back("--log-level=warn");
    arguments_.insert(arguments_.begin(),
                      {"--role=" + roles, "--name=" + name_, "--listen=" + address()});
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_.number()); }

  void Start() {
    process_ = std::make_unique<Process>(CKVD_PATH, arguments_, TempPath(name_ + ".log"));
  }
  // Waits until it answers calls; its lease may begin later.
  bool AwaitListening() {
    for (const Instant give_up = After(kStartTime); !Listens(port_.number());) {
      pollfd ended = {process_->pidfd(), POLLIN, 0};
      if (poll(&ended, 1, /*timeout ms=*/1) != 0 || Clock::Real()->Now() >= give_up) return false;
    }
    // A channel of the previous incarnation would wait before it reconnects. This one may share the
    // connection of one that is not quite closed: calls then fail at once until that wait ends.
    const auto channel = MakeChannel(address());
    const gpr_timespec wait =
        gpr_time_from_seconds(kStartTime / std::chrono::seconds(1), GPR_TIMESPAN);
    if (!channel->WaitForConnected(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), wait))) return false;
    holder_ = v1::HolderService::NewStub(channel);
    directory_ = v1::DirectoryService::NewStub(channel);
    requester_ = v1::RequesterService::NewStub(channel);
    return true;
  }
  // Until every role has its lease.
  bool AwaitServing() {
    if (!AwaitListening()) return false;
    const auto channel = MakeChannel(address());
    for (const Instant give_up = After(kStartTime); Clock::Real()->Now() < give_up;) {
      if (CheckHealth(channel, "").serving == 1) return true;
      poll(nullptr, 0, /*timeout ms=*/5);
    }
    return false;
  }
  void Kill() {
    process_->Signal(SIGKILL);
    EXPECT_EQ(process_->AwaitExit(After(kStartTime)), 128 + SIGKILL) << process_->log();
    holder_.reset();
    directory_.reset();
    requester_.reset();
  }

  Process& process() { return *process_; }
  v1::HolderService::Stub& holder() { return *holder_; }
  v1::DirectoryService::Stub& directory() { return *directory_; }
  v1::RequesterService::Stub& requester() { return *requester_; }

 private:
  // The same in every incarnation, so that peers find it again.
  const HeldPort port_;
  const std::string name_;
  std::vector<std::string> arguments_;
  std::unique_ptr<Process> process_;
  std::unique_ptr<v1::HolderService::Stub> holder_;
  std::unique_ptr<v1::DirectoryService::Stub> directory_;
  std::unique_ptr<v1::RequesterService::Stub> requester_;
};

}  // namespace ckv::test
