// Finds addresses in a configuration that peers cannot use. CheckAddresses gives the errors, from
// the text alone. AddressWarnings also resolves names: in order, the listening address, the
// advertised one, data_listen, and each of the directory's. ResolveHost gives the system's resolver
// a thread and a time limit, because its calls cannot be cancelled.

#include "server/daemon/address_checks.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/grpc/default_addresses.h"
#include "proto/base/host_port.h"

namespace ckv {
namespace {

bool IsNumber(const std::string& host) {
  in6_addr address{};  // the larger of the two
  return inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

bool HasTcp(const Config& config) {
  return std::find(config.fabrics.begin(), config.fabrics.end(), "tcp") != config.fabrics.end();
}

HostPort ParseFilled(const std::string& address) { return *HostPort::Parse(address); }

// The address that this process gives to its peers.
HostPort AdvertisedOf(const Config& config) {
  return ParseFilled(config.advertise.empty() ? config.listen : config.advertise);
}

// An address as this host resolves it.
struct Reach {
  bool loopback = false;
  std::string text;      // the address, and what it is here: "host-2:7401, which is 127.0.1.1 here"
  absl::Status unknown;  // if the name is not known here
};

Reach ReachOf(const HostPort& address, const HostResolver& resolve) {
  Reach reach{address.IsLoopback(), address.ToString(), absl::OkStatus()};
  if (reach.loopback || address.IsWildcard() || IsNumber(address.host)) return reach;
  const auto found = resolve(address.host);
  reach.unknown = found.status();
  if (!found.ok() || found->empty()) return reach;
  reach.loopback = std::all_of(found->begin(), found->end(), [](const std::string& number) {
    return HostPort{number, 0}.IsLoopback();
  });
  reach.text += absl::StrFormat(", which is %s here", found->front());
  return reach;
}

// `reported` is the address that this process gives to its peers.
void WarnOfDirectory(const HostPort& directory, const Config& config, const Reach& reported,
                     const HostResolver& resolve, std::vector<std::string>& warnings) {
  const Reach requested = ReachOf(directory, resolve);
  if (!requested.unknown.ok()) {
    warnings.push_back(absl::StrFormat("directory: this host cannot resolve %s: %s", requested.text,
                                       std::string(requested.unknown.message())));
  } else if (directory.IsWildcard()) {
    warnings.push_back(absl::StrFormat(
        "directory: %s is this host, whichever that is: name the address where it listens",
        requested.text));
  } else if (config.HasRole("holder") && reported.loopback && !requested.loopback) {
    warnings.push_back(absl::StrFormat(
        "listen: the directory is at %s, and no other host reaches this holder at %s: set --listen",
        requested.text, reported.text));
  } else if (config.HasRole("requester") && requested.loopback && !reported.loopback) {
    warnings.push_back(absl::StrFormat(
        "directory: ckvctl on other hosts is sent to %s: name the address that they use",
        requested.text));
  }
}

// One question to the resolver.
struct Answer {
  explicit Answer(const std::string& host_in) : host(host_in) {
    hints.ai_socktype = SOCK_STREAM;
    request.ar_name = host.c_str();
    request.ar_request = &hints;
  }
  ~Answer() {
    if (request.ar_result != nullptr) freeaddrinfo(request.ar_result);
  }
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  const std::string host;
  addrinfo hints{};
  gaicb request{};
};

}  // namespace

absl::StatusOr<std::vector<std::string>> ResolveHost(const std::string& host) {
  auto answer = std::make_unique<Answer>(host);
  gaicb* list[] = {&answer->request};
  int error = getaddrinfo_a(GAI_NOWAIT, list, 1, nullptr);
  if (error != 0) return absl::NotFoundError(gai_strerror(error));
  const Clock& clock = *Clock::Real();
  const Instant deadline = clock.Now() + kResolveMax;
  while ((error = gai_error(list[0])) == EAI_INPROGRESS) {
    const Duration left = std::max(deadline - clock.Now(), Duration(0));
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    const timespec timeout = {seconds.count(), (left - seconds).count()};
    if (left > Duration(0)) {
      gai_suspend(list, 1, &timeout);
    } else if (gai_cancel(list[0]) == EAI_NOTCANCELED) {
      (void)answer.release();  // the resolver's thread writes there, whenever it ends
      return absl::DeadlineExceededError("the resolver does not answer");
    }
  }
  if (error != 0) return absl::NotFoundError(gai_strerror(error));
  std::vector<std::string> numbers;
  for (const addrinfo* found = answer->request.ar_result; found != nullptr;
       found = found->ai_next) {
    char number[NI_MAXHOST];
    if (getnameinfo(found->ai_addr, found->ai_addrlen, number, sizeof(number), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      numbers.emplace_back(number);
    }
  }
  return numbers;
}

void CheckAddresses(const Config& config, std::vector<std::string>& errors) {
  const HostPort listen = ParseFilled(config.listen);
  if (listen.IsWildcard() && config.advertise.empty()) {
    errors.push_back(absl::StrFormat(
        "advertise: no peer can reach %s: name the address that peers use", config.listen));
    return;
  }
  const HostPort advertised = AdvertisedOf(config);
  if (advertised.IsWildcard()) {
    errors.push_back(absl::StrFormat("advertise: no peer can reach %s", config.advertise));
    return;
  }
  if (config.HasRole("holder") && HasTcp(config) && !advertised.IsLoopback() &&
      ParseFilled(config.data_listen).IsLoopback()) {
    errors.push_back(absl::StrFormat(
        "data_listen: peers find this holder at %s, and no other host reaches %s: set "
        "--data-listen %s, or take tcp out of fabrics",
        advertised.ToString(), config.data_listen, HostPort{advertised.host, 0}.ToString()));
  }
}

std::vector<std::string> AddressWarnings(const Config& config, const HostResolver& resolve) {
  std::vector<std::string> warnings;
  if (config.role.empty()) return warnings;
  const Reach listen = ReachOf(ParseFilled(config.listen), resolve);
  Reach reported = listen;
  if (!config.advertise.empty()) {
    reported = ReachOf(AdvertisedOf(config), resolve);
    // Others may know the name by another address than this host, whose own name is 127.0.1.1.
    reported.loopback = AdvertisedOf(config).IsLoopback();
  }
  if (!reported.unknown.ok()) {
    warnings.push_back(absl::StrFormat(
        "%s: this host cannot resolve %s: %s. Check that the others can, or give a number",
        config.advertise.empty() ? "listen" : "advertise", reported.text,
        std::string(reported.unknown.message())));
  }
  if (listen.loopback && !reported.loopback) {  // right if a forwarder here brings peers
    warnings.push_back(absl::StrFormat("listen: peers are sent to %s, and no other host reaches %s",
                                       config.advertise, listen.text));
  }
  if (config.HasRole("holder") && HasTcp(config) && !reported.loopback) {
    const Reach data = ReachOf(ParseFilled(config.data_listen), resolve);
    if (data.loopback) {
      warnings.push_back(
          absl::StrFormat("data_listen: peers find this holder at %s, and no other host reaches %s",
                          AdvertisedOf(config).ToString(), data.text));
    }
  }
  if (config.directory.empty()) return warnings;
  const auto directories = ParsePeerAddresses(config.directory, kDirectoryCountMax);
  for (const HostPort& directory : *directories)
    WarnOfDirectory(directory, config, reported, resolve, warnings);
  return warnings;
}

}  // namespace ckv
