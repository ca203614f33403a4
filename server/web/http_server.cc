// One thread polls all connections, and four answer. The phases of a connection, in order: reading
// the head; answering, on an answering thread; writing the reply; reading and dropping what the
// peer still sends. Each phase has a time limit. If there are too many connections, the one that
// has been silent for the longest is closed, so that a probe is answered under any load.

#include "server/web/http_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "server/listen/listener.h"
#include "server/web/http_head.h"
#include "transport/socket.h"

namespace ckv {
namespace {

std::string_view ReasonOf(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Error";
  }
}

// Allows only the page's own scripts and styles, and requests to this server only.
constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

std::string BytesOfReply(const HttpReply& reply, bool with_body) {
  std::string bytes = absl::StrFormat(
      "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nCache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\nContent-Security-Policy: %s\r\n"
      "Connection: close\r\n\r\n",
      reply.status, ReasonOf(reply.status), reply.content_type, reply.body.size(), kPolicy);
  if (with_body) bytes += reply.body;
  return bytes;
}

// The bytes that answer a whole head.
std::string AnswerHead(std::string_view head, const HttpServer::Handler& handler) {
  const absl::StatusOr<HttpHead> requested = ParseHttpHead(head);
  if (!requested.ok()) {
    const std::string why(requested.status().message());
    return BytesOfReply({.status = 400, .body = why + "\n"}, /*with_body=*/true);
  }
  if (requested->method != "GET" && requested->method != "HEAD")
    return BytesOfReply({.status = 405, .body = "only GET and HEAD\n"}, /*with_body=*/true);
  return BytesOfReply(handler({.path = requested->path, .query = requested->query}),
                      requested->method == "GET");
}

size_t ConnectionsAtOnce() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return HttpServer::kConnectionCountMax;
  return static_cast<size_t>(
      std::clamp<rlim_t>(limit.rlim_cur / 2, 1, HttpServer::kConnectionCountMax));
}

}  // namespace

// One thread polls; others answer. A connection is identified by a number that is never used again.
class HttpServer::Loop {
 public:
  Loop(PortListener listener, UniqueFd wake, Handler handler)
      : listener_(std::move(listener)), wake_(std::move(wake)), handler_(std::move(handler)) {
    for (int i = 0; i < kThreadCount; ++i) threads_.emplace_back([this] { Answer(); });
    threads_.emplace_back([this] { Run(); });
  }
  ~Loop() {
    {
      absl::MutexLock lock(&mu_);
      stops_ = true;
    }
    Wake();
    for (std::thread& thread : threads_) thread.join();
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

 private:
  // The phases of a connection, in order. Bytes after its head are read and dropped: closing a
  // socket with unread bytes resets the connection, and the answer is lost.
  enum class Phase { kReads, kIsAnswered, kWrites, kLingers };

  struct Connection {
    UniqueFd fd;
    Phase phase = Phase::kReads;
    std::string bytes;  // the head's, then the answer's
    size_t written = 0;
    Instant opened, heard;  // when it was accepted, when a byte last moved
  };

  struct Job {
    uint64_t number;
    std::string bytes;
  };

  void Wake() {
    const uint64_t one = 1;
    (void)!write(wake_.get(), &one, sizeof(one));
  }

  // On an answering thread.
  void Answer() {
    while (true) {
      Job job;
      {
        absl::MutexLock lock(&mu_);
        mu_.Await(absl::Condition(this, &Loop::HasHeadOrStops));
        if (stops_) return;
        job = std::move(heads_.front());
        heads_.pop_front();
      }
      job.bytes = AnswerHead(job.bytes, handler_);
      {
        absl::MutexLock lock(&mu_);
        answers_.push_back(std::move(job));
      }
      Wake();
    }
  }
  bool HasHeadOrStops() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stops_ || !heads_.empty();
  }

  // All below is the polling thread's.
  void Run() {
    while (TakeAnswers()) {
      std::vector<pollfd> polled;
      std::vector<uint64_t> numbers;
      polled.push_back({wake_.get(), POLLIN, 0});
      const bool was_short = std::exchange(is_short_, false);
      for (const UniqueFd& socket : listener_.sockets())
        polled.push_back({socket.get(), static_cast<short>(was_short ? 0 : POLLIN), 0});
      const size_t first = polled.size();
      for (const auto& [number, connection] : connections_) {
        if (connection.phase == Phase::kIsAnswered) continue;
        const bool writes = connection.phase == Phase::kWrites;
        polled.push_back({connection.fd.get(), static_cast<short>(writes ? POLLOUT : POLLIN), 0});
        numbers.push_back(number);
      }
      const auto wait_ms = static_cast<int>(PollMs(was_short));
      if (poll(polled.data(), polled.size(), wait_ms) < 0 && errno != EINTR) continue;
      if (polled[0].revents != 0) {
        uint64_t count = 0;
        (void)!read(wake_.get(), &count, sizeof(count));
      }
      for (size_t i = first; i < polled.size(); ++i) {
        if (polled[i].revents != 0) Move(numbers[i - first]);
      }
      DropOverdue();
      for (size_t i = 1; i < first; ++i) {
        if (polled[i].revents != 0) AcceptFrom(listener_.sockets()[i - 1]);
      }
    }
  }

  // Returns false when the server ends.
  bool TakeAnswers() {
    std::vector<Job> answers;
    {
      absl::MutexLock lock(&mu_);
      if (stops_) return false;
      answers.swap(answers_);
    }
    for (Job& answer : answers) {
      const auto found = connections_.find(answer.number);
      if (found == connections_.end()) continue;
      found->second.bytes = std::move(answer.bytes);
      found->second.phase = Phase::kWrites;
      found->second.heard = clock_.Now();
      Move(answer.number);
    }
    return true;
  }

  // Returns the time until the next connection times out, or until the next check for descriptors.
  int64_t PollMs(bool was_short) const {
    Duration least = was_short ? PortListener::kShortPause : kSilenceMax;
    const Instant now = clock_.Now();
    for (const auto& [number, connection] : connections_)
      least = std::min(least, EndOf(connection) - now);
    return std::max<int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(least).count());
  }
  static Instant EndOf(const Connection& connection) {
    if (connection.phase == Phase::kIsAnswered) return kInstantMax - kConnectionMax;
    return std::min(connection.heard + kSilenceMax, connection.opened + kConnectionMax);
  }
  void DropOverdue() {
    const Instant now = clock_.Now();
    std::erase_if(connections_, [now](const auto& one) { return EndOf(one.second) <= now; });
  }

  void AcceptFrom(const UniqueFd& socket) {
    for (int i = 0; i < kAcceptBatchMax; ++i) {
      const PortListener::Accepted accepted = listener_.Accept(socket);
      if (accepted.outcome == PortListener::Outcome::kNone) return;
      if (accepted.outcome == PortListener::Outcome::kShort) {
        is_short_ = !DropMostSilent();
        return;
      }
      UniqueFd fd(accepted.fd);
      // The newest may be a probe: it is accepted next time, in the place of a silent one.
      if (accepted.outcome == PortListener::Outcome::kRefused) {
        DropMostSilent();
        continue;
      }
      if (connections_.size() >= connection_count_max_ && !DropMostSilent()) continue;
      const Instant now = clock_.Now();
      const uint64_t number = next_number_++;
      connections_.try_emplace(
          number, Connection{.fd = std::move(fd), .bytes = {}, .opened = now, .heard = now});
      Move(number);  // its head has often arrived already
    }
  }
  // Returns false if all of them wait for this process.
  bool DropMostSilent() {
    auto least = connections_.end();
    for (auto it = connections_.begin(); it != connections_.end(); ++it) {
      if (it->second.phase == Phase::kIsAnswered) continue;
      if (least == connections_.end() || it->second.heard < least->second.heard) least = it;
    }
    if (least == connections_.end()) return false;
    connections_.erase(least);
    return true;
  }

  // Reads or writes as much as there is, and closes a connection that has ended.
  void Move(uint64_t number) {
    const auto found = connections_.find(number);
    if (found == connections_.end()) return;
    Connection& connection = found->second;
    bool goes_on = true;
    if (connection.phase == Phase::kReads) goes_on = ReadHead(number, connection);
    if (goes_on && connection.phase == Phase::kWrites) goes_on = WriteAnswer(connection);
    if (goes_on && connection.phase == Phase::kLingers) goes_on = Linger(connection);
    if (!goes_on) connections_.erase(found);
  }

  // These return true if the connection continues.
  bool ReadHead(uint64_t number, Connection& connection) {
    std::array<char, kHttpHeadBytesMax> chunk;
    while (true) {
      const ssize_t got = recv(connection.fd.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return errno == EAGAIN;
      if (got == 0) return false;
      connection.heard = clock_.Now();
      connection.bytes.append(chunk.data(), static_cast<size_t>(got));
      if (connection.bytes.size() > kHttpHeadBytesMax) {
        connection.bytes = BytesOfReply({.status = 431, .body = "a head of over 8 KiB\n"}, true);
        connection.phase = Phase::kWrites;
        return true;
      }
      if (HttpHeadIsWhole(connection.bytes)) break;
    }
    connection.phase = Phase::kIsAnswered;
    absl::MutexLock lock(&mu_);
    heads_.push_back({number, std::move(connection.bytes)});
    return true;
  }
  bool WriteAnswer(Connection& connection) {
    while (connection.written < connection.bytes.size()) {
      const ssize_t sent =
          send(connection.fd.get(), connection.bytes.data() + connection.written,
               connection.bytes.size() - connection.written, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) return errno == EAGAIN;
      connection.written += static_cast<size_t>(sent);
      connection.heard = clock_.Now();
    }
    connection.bytes = {};
    connection.phase = Phase::kLingers;
    return shutdown(connection.fd.get(), SHUT_WR) == 0;
  }
  static bool Linger(const Connection& connection) {
    std::array<char, 4096> dropped;
    for (int i = 0; i < kLingerReadsMax; ++i) {
      const ssize_t got = recv(connection.fd.get(), dropped.data(), dropped.size(), MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return errno == EAGAIN;
      if (got == 0) return false;
    }
    return true;
  }

  // New connections per turn, so that a flood does not keep others waiting.
  static constexpr int kAcceptBatchMax = 64;
  static constexpr int kLingerReadsMax = 16;

  PortListener listener_;
  const UniqueFd wake_;
  const Handler handler_;
  const Clock& clock_ = *Clock::Real();
  const size_t connection_count_max_ = ConnectionsAtOnce();
  std::map<uint64_t, Connection> connections_;
  uint64_t next_number_ = 0;
  bool is_short_ = false;  // no descriptor is left to accept or refuse with

  absl::Mutex mu_;
  bool stops_ ABSL_GUARDED_BY(mu_) = false;
  // At most one entry each for a connection. So their size is at most the connections' limit, plus
  // the requests in progress of closed connections.
  std::deque<Job> heads_ ABSL_GUARDED_BY(mu_);
  std::vector<Job> answers_ ABSL_GUARDED_BY(mu_);

  std::vector<std::thread> threads_;  // last, because they use the others
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address,
                                                              Handler handler) {
  const auto cannot = [&address](std::string_view why) {
    return absl::UnavailableError(absl::StrFormat("cannot listen on %s: %s", address, why));
  };
  auto bound = HostPort::Parse(address);
  if (!bound.ok()) return cannot(std::string(bound.status().message()));
  auto listener = PortListener::Bind(*bound, /*both_families=*/false, PortUse::kHealth);
  if (!listener.ok()) return cannot(std::string(listener.status().message()));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoStatus("eventfd");
  bound->port = listener->port();
  auto loop = std::make_unique<Loop>(*std::move(listener), std::move(wake), std::move(handler));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(loop), *std::move(bound)));
}

HttpServer::HttpServer(std::unique_ptr<Loop> loop, HostPort address)
    : loop_(std::move(loop)), address_(std::move(address)) {}

HttpServer::~HttpServer() = default;

}  // namespace ckv
