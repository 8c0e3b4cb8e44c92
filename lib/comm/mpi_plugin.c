// The MPI plug-in: what the Rust side needs of MPI behind a C ABI, opened only when a launcher started more than one
// rank. It is built against the site's own MPI. Every wait sleeps instead of spinning, and every error is returned.

#define _POSIX_C_SOURCE 200809L
#include <limits.h>
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// MPI counts are int: longer messages travel as pieces of this many bytes.
#define PIECE_BYTES ((size_t)1 << 30)
// A wait polls this often, giving way to other processes, before it starts to sleep.
#define YIELDS 64
#define FIRST_SLEEP_NS 20000L
#define EXCHANGE_SLEEP_NS 200000L
#define BARRIER_SLEEP_NS 5000000L
// After an error, how long pending sends may take to finish before the job is ended: their buffers are borrowed.
#define DRAIN_SLEEPS 10000

// Outside the range of MPI's own error classes.
#define SLIME_SHORT (-1)
#define SLIME_MEMORY (-2)

struct slime_part {
    void *data;
    size_t len;
    int peer;
};

// MPI runs at MPI_THREAD_SERIALIZED: one call at a time, the lock is free while a wait sleeps.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void pause_for(int round, long longest_ns) {
    if (round < YIELDS) {
        sched_yield();
        return;
    }
    int doublings = round - YIELDS;
    long ns = doublings > 20 ? longest_ns : FIRST_SLEEP_NS << doublings;
    struct timespec nap = {0, ns < longest_ns ? ns : longest_ns};
    nanosleep(&nap, NULL);
}

static int wrap(MPI_Comm comm, void **handle, int *rank, int *size) {
    MPI_Comm *box = malloc(sizeof *box);
    if (box == NULL) return SLIME_MEMORY;
    *box = comm;
    *handle = box;
    int rc = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    if (rc == MPI_SUCCESS) rc = MPI_Comm_rank(comm, rank);
    if (rc == MPI_SUCCESS) rc = MPI_Comm_size(comm, size);
    return rc;
}

int slime_mpi_abi(void) { return 2; }

int slime_mpi_init(void **world, int *rank, int *size) {
    int provided = 0;
    int rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    if (rc != MPI_SUCCESS) return rc;
    if (provided < MPI_THREAD_SERIALIZED) return MPI_ERR_OTHER;
    return wrap(MPI_COMM_WORLD, world, rank, size);
}

int slime_mpi_split(void *comm, int colour, int key, void **out, int *rank, int *size) {
    MPI_Comm made;
    pthread_mutex_lock(&lock);
    int rc = MPI_Comm_split(*(MPI_Comm *)comm, colour, key, &made);
    if (rc == MPI_SUCCESS) rc = wrap(made, out, rank, size);
    pthread_mutex_unlock(&lock);
    return rc;
}

int slime_mpi_barrier(void *comm) {
    MPI_Request request;
    int done = 0;
    pthread_mutex_lock(&lock);
    int rc = MPI_Ibarrier(*(MPI_Comm *)comm, &request);
    pthread_mutex_unlock(&lock);
    for (int round = 0; rc == MPI_SUCCESS && !done; round += round < INT_MAX) {
        pthread_mutex_lock(&lock);
        rc = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        pthread_mutex_unlock(&lock);
        if (rc == MPI_SUCCESS && !done) pause_for(round, BARRIER_SLEEP_NS);
    }
    return rc;
}

static size_t pieces(size_t len) { return len == 0 ? 1 : (len + PIECE_BYTES - 1) / PIECE_BYTES; }

// Starts the transfer of one part; `expected` gets the bytes each receive must bring, -1 for a send.
static int start(MPI_Comm comm, int tag, const struct slime_part *part, int is_send, MPI_Request *requests,
                 int *expected, int *used) {
    size_t count = pieces(part->len);
    for (size_t i = 0; i < count; i++) {
        size_t at = i * PIECE_BYTES;
        size_t left = part->len - at;
        int bytes = (int)(left < PIECE_BYTES ? left : PIECE_BYTES);
        char *data = (char *)part->data + at;
        int rc = is_send ? MPI_Isend(data, bytes, MPI_BYTE, part->peer, tag, comm, &requests[*used])
                         : MPI_Irecv(data, bytes, MPI_BYTE, part->peer, tag, comm, &requests[*used]);
        if (rc != MPI_SUCCESS) return rc;
        expected[(*used)++] = is_send ? -1 : bytes;
    }
    return MPI_SUCCESS;
}

// After an error no request may outlive the caller's buffers: receives are cancelled, sends get time to leave.
static void drain(MPI_Request *requests, const int *expected, int used) {
    for (int i = 0; i < used; i++) {
        if (requests[i] != MPI_REQUEST_NULL && expected[i] >= 0) MPI_Cancel(&requests[i]);
    }
    int done = 0;
    for (int nap = 0; nap < DRAIN_SLEEPS && !done; nap++) {
        done = 1;
        for (int i = 0; i < used; i++) {
            int one = 1;
            if (requests[i] != MPI_REQUEST_NULL) MPI_Test(&requests[i], &one, MPI_STATUS_IGNORE);
            done = done && one;
        }
        if (!done) pause_for(nap, EXCHANGE_SLEEP_NS);
    }
    if (!done) MPI_Abort(MPI_COMM_WORLD, 70);
}

// Waits for all; a receive that brought fewer bytes than its buffer holds is SLIME_SHORT.
static int wait_all(MPI_Request *requests, const int *expected, int used) {
    int rc = MPI_SUCCESS;
    int open = used;
    for (int round = 0; open > 0 && rc == MPI_SUCCESS; round += round < INT_MAX) {
        pthread_mutex_lock(&lock);
        int before = open;
        open = 0;
        for (int i = 0; i < used && rc == MPI_SUCCESS; i++) {
            if (requests[i] == MPI_REQUEST_NULL) continue;
            MPI_Status status;
            int done = 0;
            rc = MPI_Test(&requests[i], &done, &status);
            if (rc == MPI_SUCCESS && done && expected[i] >= 0) {
                int got = 0;
                MPI_Get_count(&status, MPI_BYTE, &got);
                if (got != expected[i]) rc = SLIME_SHORT;
            }
            open += !done;
        }
        if (rc != MPI_SUCCESS) drain(requests, expected, used);
        pthread_mutex_unlock(&lock);
        if (open < before) round = 0;
        if (open > 0) pause_for(round, EXCHANGE_SLEEP_NS);
    }
    return rc;
}

int slime_mpi_exchange(void *comm, int tag, int num_out, const struct slime_part *out, int num_in,
                       const struct slime_part *in) {
    size_t total = 0;
    for (int i = 0; i < num_in; i++) total += pieces(in[i].len);
    for (int i = 0; i < num_out; i++) total += pieces(out[i].len);
    if (total == 0) return MPI_SUCCESS;
    MPI_Request *requests = malloc(total * sizeof *requests);
    int *expected = malloc(total * sizeof *expected);
    int rc = requests == NULL || expected == NULL ? SLIME_MEMORY : MPI_SUCCESS;
    if (rc == MPI_SUCCESS) {
        MPI_Comm on = *(MPI_Comm *)comm;
        int used = 0;
        pthread_mutex_lock(&lock);
        for (int i = 0; i < num_in && rc == MPI_SUCCESS; i++) rc = start(on, tag, &in[i], 0, requests, expected, &used);
        for (int i = 0; i < num_out && rc == MPI_SUCCESS; i++)
            rc = start(on, tag, &out[i], 1, requests, expected, &used);
        if (rc != MPI_SUCCESS) drain(requests, expected, used);
        pthread_mutex_unlock(&lock);
        if (rc == MPI_SUCCESS) rc = wait_all(requests, expected, used);
    }
    free(requests);
    free(expected);
    return rc;
}

// A message on its way whose sender has gone on: the copy lives until MPI has sent it.
struct posted {
    struct posted *next;
    MPI_Request *requests;
    int *expected;
    int used;
    char data[];
};

static struct posted *posted_first = NULL;

// Frees what has been sent, under the lock; MPI makes headway with the rest meanwhile.
static int reap(void) {
    for (struct posted **at = &posted_first; *at != NULL;) {
        struct posted *message = *at;
        int all = 1;
        for (int i = 0; i < message->used && all; i++) {
            if (message->requests[i] == MPI_REQUEST_NULL) continue;
            int rc = MPI_Test(&message->requests[i], &all, MPI_STATUS_IGNORE);
            if (rc != MPI_SUCCESS) return rc;
        }
        if (all) {
            *at = message->next;
            free(message->requests);
            free(message->expected);
            free(message);
        } else {
            at = &message->next;
        }
    }
    return MPI_SUCCESS;
}

// MPI makes headway only in its own calls, and a rank that has posted a message may make none for long, as while it waits
// for a GPU: a thread makes them until everything has been sent.
static pthread_cond_t posted_any = PTHREAD_COND_INITIALIZER;
static pthread_t headway;
static int has_headway = 0;
static int is_ending = 0;
static int headway_error = MPI_SUCCESS;

static void *make_headway(void *nothing) {
    (void)nothing;
    struct timespec nap = {0, EXCHANGE_SLEEP_NS};
    pthread_mutex_lock(&lock);
    while (!is_ending) {
        if (posted_first == NULL) {
            pthread_cond_wait(&posted_any, &lock);
            continue;
        }
        int rc = reap();
        if (rc != MPI_SUCCESS) {
            headway_error = rc;
            break;
        }
        pthread_mutex_unlock(&lock);
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

int slime_mpi_post(void *comm, int tag, const struct slime_part *part) {
    struct posted *message = malloc(sizeof *message + part->len);
    if (message == NULL) return SLIME_MEMORY;
    *message = (struct posted){NULL, malloc(pieces(part->len) * sizeof(MPI_Request)),
                               malloc(pieces(part->len) * sizeof(int)), 0};
    if (message->requests == NULL || message->expected == NULL) {
        free(message->requests);
        free(message->expected);
        free(message);
        return SLIME_MEMORY;
    }
    if (part->len > 0) memcpy(message->data, part->data, part->len);
    struct slime_part copy = {message->data, part->len, part->peer};
    pthread_mutex_lock(&lock);
    int rc = start(*(MPI_Comm *)comm, tag, &copy, 1, message->requests, message->expected, &message->used);
    // Also after an error: what was started may still read the copy.
    message->next = posted_first;
    posted_first = message;
    if (rc == MPI_SUCCESS) rc = reap();
    if (rc == MPI_SUCCESS) rc = headway_error;
    if (rc == MPI_SUCCESS && posted_first != NULL) {
        if (!has_headway) has_headway = pthread_create(&headway, NULL, make_headway, NULL) == 0;
        // Without a thread the next call makes the headway.
        pthread_cond_signal(&posted_any);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

// MPI_Comm_free is collective and ranks drop in any order: the communicator itself lives until MPI_Finalize.
void slime_mpi_free(void *comm) { free(comm); }

int slime_mpi_finalize(void) {
    pthread_mutex_lock(&lock);
    is_ending = 1;
    pthread_cond_signal(&posted_any);
    pthread_mutex_unlock(&lock);
    if (has_headway) pthread_join(headway, NULL);
    pthread_mutex_lock(&lock);
    // Everybody has taken what was posted before anybody comes here.
    int rc = reap();
    for (int round = 0; rc == MPI_SUCCESS && posted_first != NULL; round += round < INT_MAX) {
        pause_for(round, EXCHANGE_SLEEP_NS);
        rc = reap();
    }
    if (rc == MPI_SUCCESS) rc = MPI_Finalize();
    pthread_mutex_unlock(&lock);
    return rc;
}

// Takes no lock: the job ends whatever another thread is in.
void slime_mpi_abort(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

void slime_mpi_error(int code, char *text, int capacity) {
    char message[MPI_MAX_ERROR_STRING + 1] = "unknown error";
    int len = 0;
    if (code == SLIME_SHORT) {
        strcpy(message, "a message was shorter than the buffer it was received into");
    } else if (code == SLIME_MEMORY) {
        strcpy(message, "out of memory");
    } else {
        MPI_Error_string(code, message, &len);
    }
    strncpy(text, message, (size_t)capacity - 1);
    text[capacity - 1] = '\0';
}
