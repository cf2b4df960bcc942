// A store with the latencies of S3: it answers GETs of ranges of the files in a folder, a thread a
// connection, over HTTP or TLS, and counts what it sends. See __init__.py for its options.
//
// It takes 0.3 CPU s a GiB over HTTP, so that it can share a small machine with what it measures.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr double kNormal99 = 2.3263;  // the standard normal distribution is below it 99 % of times
constexpr long kChunk = 256 << 10;

using Clock = std::chrono::steady_clock;

double Now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

void Sleep(double seconds) {
  if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// What may be changed while it runs, by POST /__set?name=value.
struct Settings {
  std::atomic<double> median_ms{20}, p99_ms{150};  // to the first byte; constant if they are equal
  std::atomic<double> mb_per_s{80};                // of a connection
  std::atomic<double> refused{0};                  // part of the GETs that get a 503
  std::atomic<double> stalled{0}, stall_s{5};      // part whose body stops in its middle, how long
  std::atomic<double> down{0};                     // 1: connections are closed unanswered

  bool Set(const std::string& name, double value) {
    const std::map<std::string, std::atomic<double>*> all = {
        {"median_ms", &median_ms}, {"p99_ms", &p99_ms},   {"mb_per_s", &mb_per_s},
        {"refused", &refused},     {"stalled", &stalled}, {"stall_s", &stall_s},
        {"down", &down}};
    const auto found = all.find(name);
    if (found == all.end()) return false;
    *found->second = value;
    return true;
  }
};

class Counts {
 public:
  void Begin() { Change(1); }
  void End() { Change(-1); }
  void Answered(long bytes, const std::string& path) {
    std::lock_guard<std::mutex> guard(mutex_);
    // Shards are what is compared with a computation.
    if (path.size() > 6 && path.compare(path.size() - 6, 6, ".arrow") == 0) {
      gets_++;
      bytes_ += bytes;
    } else {
      others_++;
    }
  }
  void Refused() { Add(refused_); }
  void Stalled() { Add(stalled_); }
  void Missing() { Add(others_); }
  void Connected() { Add(connections_); }
  std::string Text() {
    std::lock_guard<std::mutex> guard(mutex_);
    rusage used;
    getrusage(RUSAGE_SELF, &used);
    const double cpu_s = used.ru_utime.tv_sec + used.ru_stime.tv_sec +
                         (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
    char text[500];
    snprintf(text, sizeof text,
             "{\"gets\": %ld, \"bytes\": %ld, \"others\": %ld, \"refused\": %ld, \"stalled\": %ld, "
             "\"connections\": %ld, \"most_in_flight\": %ld, \"in_flight_s\": %.4f, "
             "\"busy_s\": %.4f, \"cpu_s\": %.3f}",
             gets_, bytes_, others_, refused_, stalled_, connections_, most_, in_flight_s_,
             busy_s_, cpu_s);
    return text;
  }

 private:
  void Add(long& count) {
    std::lock_guard<std::mutex> guard(mutex_);
    count++;
  }
  void Change(int by) {
    std::lock_guard<std::mutex> guard(mutex_);
    const double now = Now();
    in_flight_s_ += in_flight_ * (now - since_);
    if (in_flight_) busy_s_ += now - since_;
    since_ = now;
    in_flight_ += by;
    most_ = std::max(most_, in_flight_);
  }

  std::mutex mutex_;
  long gets_ = 0, bytes_ = 0, others_ = 0, refused_ = 0, stalled_ = 0, connections_ = 0;
  long in_flight_ = 0, most_ = 0;
  double in_flight_s_ = 0, busy_s_ = 0, since_ = Now();
};

Settings settings;
Counts counts;
std::string folder;
SSL_CTX* tls = nullptr;

thread_local std::mt19937_64 random_words{std::random_device{}()};

bool Happens(double part) {
  return std::uniform_real_distribution<double>(0, 1)(random_words) < part;
}

double LatencySeconds() {
  const double median = settings.median_ms, p99 = std::max<double>(settings.p99_ms, median);
  if (median <= 0) return 0;
  const double sigma = std::log(p99 / median) / kNormal99;
  return median / 1000 * std::exp(sigma * std::normal_distribution<double>()(random_words));
}

std::string Unquoted(const std::string& text) {
  std::string plain;
  for (size_t at = 0; at < text.size(); at++) {
    if (text[at] == '%' && at + 2 < text.size()) {
      plain += static_cast<char>(strtol(text.substr(at + 1, 2).c_str(), nullptr, 16));
      at += 2;
    } else {
      plain += text[at];
    }
  }
  return plain;
}

class Connection {
 public:
  explicit Connection(int socket) : socket_(socket), buffer_(kChunk) {
    const int one = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  }
  Connection(const Connection&) = delete;
  ~Connection() {
    if (ssl_) SSL_free(ssl_);
    close(socket_);
  }

  void Serve() {
    if (tls) {
      ssl_ = SSL_new(tls);
      SSL_set_fd(ssl_, socket_);
      if (SSL_accept(ssl_) <= 0) return;
    }
    counts.Connected();
    std::string head;
    while (ReadHead(head)) {
      const bool goes_on = Answer(head);
      if (!goes_on) return;
    }
  }

 private:
  bool ReadHead(std::string& head) {
    size_t end;
    while ((end = received_.find("\r\n\r\n")) == std::string::npos) {
      char some[8192];
      const ssize_t count =
          ssl_ ? SSL_read(ssl_, some, sizeof some) : recv(socket_, some, sizeof some, 0);
      if (count <= 0) return false;
      received_.append(some, count);
    }
    head = received_.substr(0, end);
    received_.erase(0, end + 4);
    return true;
  }

  bool Send(const char* from, size_t size) {
    while (size) {
      const ssize_t count =
          ssl_ ? SSL_write(ssl_, from, size) : send(socket_, from, size, MSG_NOSIGNAL);
      if (count <= 0) return false;
      from += count;
      size -= count;
    }
    return true;
  }

  bool SendText(const char* status, const std::string& body, bool with_body) {
    const std::string head = std::string("HTTP/1.1 ") + status +
                             "\r\nContent-Type: application/xml\r\nContent-Length: " +
                             std::to_string(body.size()) + "\r\n\r\n";
    const std::string all = with_body ? head + body : head;
    return Send(all.data(), all.size());
  }

  bool Answer(const std::string& head) {
    const size_t space = head.find(' '), second = head.find(' ', space + 1);
    const bool is_get = head.compare(0, space, "HEAD") != 0;
    std::string path = head.substr(space + 1, second - space - 1), query;
    if (const size_t mark = path.find('?'); mark != std::string::npos) {
      query = path.substr(mark + 1);
      path.resize(mark);
    }
    path = Unquoted(path);
    if (path == "/__stats") return SendText("200 OK", counts.Text(), true);
    if (path == "/__set") return Set(query);
    if (settings.down > 0) return false;
    counts.Begin();
    const bool goes_on = AnswerObject(path, head, query, is_get);
    counts.End();
    return goes_on;
  }

  bool Set(const std::string& query) {
    const size_t equals = query.find('=');
    const bool is_known =
        equals != std::string::npos &&
        settings.Set(query.substr(0, equals), strtod(query.c_str() + equals + 1, nullptr));
    return SendText(is_known ? "200 OK" : "400 Bad Request", "", true);
  }

  bool AnswerObject(const std::string& path, const std::string& head, const std::string& query,
                    bool is_get) {
    Sleep(LatencySeconds());
    struct stat found;
    const size_t key = path.find('/', 1);
    const std::string name = key == std::string::npos ? "" : folder + path.substr(key);
    const bool is_list = query.find("list-type=2") != std::string::npos;
    if (is_list || name.empty() || stat(name.c_str(), &found) || !S_ISREG(found.st_mode)) {
      counts.Missing();
      return SendText("404 Not Found", "<Error><Code>NoSuchKey</Code></Error>", is_get);
    }
    if (is_get && Happens(settings.refused)) {
      counts.Refused();
      return SendText("503 Slow Down", "<Error><Code>SlowDown</Code></Error>", true);
    }
    long first = 0, stop = found.st_size;
    std::string lower = head, range;
    for (char& letter : lower) letter = tolower(letter);
    if (const size_t at = lower.find("\r\nrange: bytes="); at != std::string::npos) {
      char* rest;
      first = strtol(lower.c_str() + at + 15, &rest, 10);
      if (*rest == '-' && isdigit(rest[1])) stop = std::min(stop, strtol(rest + 1, nullptr, 10) + 1);
      range = "Content-Range: bytes " + std::to_string(first) + "-" + std::to_string(stop - 1) +
              "/" + std::to_string(found.st_size) + "\r\n";
    }
    char text[600];
    const int size = snprintf(
        text, sizeof text,
        "HTTP/1.1 %s\r\nContent-Length: %ld\r\n%sAccept-Ranges: bytes\r\nETag: \"%lx-%lx\"\r\n"
        "Last-Modified: Wed, 21 Oct 2026 07:28:00 GMT\r\nContent-Type: binary/octet-stream\r\n\r\n",
        range.empty() ? "200 OK" : "206 Partial Content", stop - first, range.c_str(),
        static_cast<long>(found.st_mtime), static_cast<long>(found.st_size));
    counts.Answered(is_get ? stop - first : 0, path);
    return Send(text, size) && (!is_get || SendBody(name, first, stop));
  }

  bool SendBody(const std::string& name, long first, long stop) {
    const int file = open(name.c_str(), O_RDONLY);
    const double began = Now(), rate = settings.mb_per_s * 1e6;
    const bool stalls = Happens(settings.stalled);
    const long middle = first + (stop - first) / 2;
    long at = first;
    bool is_sent = true, has_stalled = false;
    while (at < stop && is_sent) {
      if (stalls && !has_stalled && at >= middle) {
        has_stalled = true;
        counts.Stalled();
        Sleep(settings.stall_s);
      }
      long size = std::min(kChunk, stop - at);
      if (ssl_) {
        size = pread(file, buffer_.data(), size, at);
        is_sent = size > 0 && Send(buffer_.data(), size);
      } else {
        off_t offset = at;
        size = sendfile(socket_, file, &offset, size);
        is_sent = size > 0;
      }
      at += size;
      Sleep(began + (at - first) / rate - Now());
    }
    close(file);
    return is_sent;
  }

  int socket_;
  SSL* ssl_ = nullptr;
  std::string received_;
  std::vector<char> buffer_;
};

int Listen() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) || listen(listener, 512)) exit(3);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  printf("%s://127.0.0.1:%d\n", tls ? "https" : "http", ntohs(address.sin_port));
  fflush(stdout);
  return listener;
}

}  // namespace

int main(int count, char** given) {  // FOLDER CERTIFICATE KEY [NAME=VALUE]...
  signal(SIGPIPE, SIG_IGN);
  if (count < 4) return 1;
  folder = given[1];
  if (*given[2]) {
    tls = SSL_CTX_new(TLS_server_method());
    if (SSL_CTX_use_certificate_chain_file(tls, given[2]) <= 0 ||
        SSL_CTX_use_PrivateKey_file(tls, given[3], SSL_FILETYPE_PEM) <= 0)
      return 2;
  }
  for (int at = 4; at < count; at++) {
    const std::string pair = given[at];
    const size_t equals = pair.find('=');
    if (equals == std::string::npos ||
        !settings.Set(pair.substr(0, equals), strtod(pair.c_str() + equals + 1, nullptr))) {
      fprintf(stderr, "%s is no setting with a value\n", given[at]);
      return 4;
    }
  }
  const int listener = Listen();
  for (;;) {
    const int socket = accept(listener, nullptr, nullptr);
    if (socket >= 0) std::thread([socket] { Connection(socket).Serve(); }).detach();
  }
}
