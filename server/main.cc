// ckvd: reads its configuration and runs the roles that it configures.

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "proto/host/descriptors.h"
#include "proto/host/lock_checks.h"
#include "server/daemon/address_checks.h"
#include "server/daemon/config.h"
#include "server/daemon/daemon.h"
#include "server/daemon/heap.h"
#include "server/daemon/start_limits.h"

CKV_OPEN_STANDARD_DESCRIPTORS_FIRST();

static std::vector<std::string> EnvironmentNames() {
  std::vector<std::string> names;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    names.emplace_back(text.substr(0, text.find('=')));
  }
  return names;
}

int main(int argc, char** argv) {
  ckv::EndShortagesWithALine();
  ckv::EndLockOrderChecks();
  // Blocked until it is handled, so that a reload while the configuration is read does not end the
  // process.
  sigset_t hangup;
  sigemptyset(&hangup);
  sigaddset(&hangup, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &hangup, nullptr);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto read_config = [&arguments] {
    return ckv::ReadConfig(
        arguments,
        [](const std::string& name) -> std::optional<std::string> {
          const char* value = std::getenv(name.c_str());
          return value == nullptr ? std::nullopt : std::optional<std::string>(value);
        },
        EnvironmentNames());
  };
  auto parsed = read_config();
  if (!parsed.ok()) {
    const std::string message(parsed.status().message());
    std::fprintf(stderr, "%s\n", message.c_str());
    return 2;
  }
  for (std::string& warning : ckv::AddressWarnings(parsed->config, ckv::ResolveHost)) {
    parsed->warnings.push_back(std::move(warning));
  }
  if (parsed->action == ckv::ConfigAction::kPrint) {
    for (const std::string& warning : parsed->warnings) {
      std::fprintf(stderr, "warning: %s\n", warning.c_str());
    }
    std::fputs(parsed->text.c_str(), stdout);
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
    std::fprintf(stderr, "ckvd: stdout cannot be written: %s\n", std::strerror(errno));
    return 1;
  }
  if (parsed->config.HasRole("requester")) {
    ckv::KeepHeapForAnswers();
  } else {
    ckv::KeepHeapSmall();
  }
  const ckv::DescriptorLimit files = ckv::RaiseDescriptorLimit();
  if (const absl::Status limits = ckv::CheckStartLimits(parsed->config); !limits.ok()) {
    const std::string message(limits.message());
    std::fprintf(stderr, "ckvd: %s\n", message.c_str());
    return 1;
  }
  parsed->notes.push_back(
      absl::StrFormat("may have %d descriptors; the soft limit was %d", files.now, files.before));
  return ckv::RunDaemon(*parsed, read_config);
}
