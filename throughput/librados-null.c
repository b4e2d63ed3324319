/*
 * The load of the group `ceph` through librados, Ceph's own client library: writes to an object whose name is longer than
 * osd_max_object_name_len, which the osd receives, checks and refuses (ENAMETOOLONG) without touching its store.
 *
 *     cc -O2 -o librados-null throughput/librados-null.c -lrados          (Debian: librados-dev)
 *     librados-null CONF POOL null SIZE DEPTH SECONDS
 *
 * One connection, DEPTH asynchronous writes in flight. CPU time is that of the whole process, all threads, from the first
 * write to the last answer: connecting is not in it. Prints one line: "... N ops ... R op/s ... C us/op  bad B".
 */
#include <errno.h>
#include <rados/librados.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

static double cpu_seconds(void)
{
	struct rusage used;
	getrusage(RUSAGE_SELF, &used);
	return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

static void check(int result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "librados-null: %s: %s\n", what, strerror(-result));
		exit(1);
	}
}

static void begin(rados_ioctx_t pool, rados_completion_t *write, const char *data, size_t size)
{
	/* Longer than the 100 bytes that the osd has to be set to. */
	static char name[121];
	if (!name[0])
		memset(name, 'n', sizeof name - 1);
	check(rados_aio_create_completion2(NULL, NULL, write), "completion");
	check(rados_aio_write(pool, name, *write, data, size, 0), "write");
}

static int refused(rados_completion_t write)
{
	rados_aio_wait_for_complete(write);
	int result = rados_aio_get_return_value(write);
	rados_aio_release(write);
	return result == -ENAMETOOLONG;
}

int main(int count, char **words)
{
	if (count != 7 || strcmp(words[3], "null")) {
		fprintf(stderr, "usage: librados-null CONF POOL null SIZE DEPTH SECONDS\n");
		return 2;
	}
	size_t size = strtoul(words[4], NULL, 10);
	int depth = atoi(words[5]);
	double lasting = atof(words[6]);
	char *data = malloc(size);
	rados_completion_t *writes = calloc(depth > 0 ? depth : 1, sizeof *writes);
	if (depth < 1 || !data || !writes) {
		fprintf(stderr, "librados-null: DEPTH is 1 or more, and SIZE has to fit into memory\n");
		return 2;
	}
	memset(data, 0xa5, size);

	rados_t cluster;
	rados_ioctx_t pool;
	check(rados_create(&cluster, "admin"), "create");
	check(rados_conf_read_file(cluster, words[1]), words[1]);
	/* The bound on bytes in flight is DEPTH alone. */
	check(rados_conf_set(cluster, "objecter_inflight_op_bytes", "4294967296"), "conf");
	check(rados_connect(cluster), "connect");
	check(rados_ioctx_create(cluster, words[2], &pool), words[2]);

	double began = seconds(), cpu = cpu_seconds();
	long started = 0, answered = 0, bad = 0;
	while (started < depth)
		begin(pool, &writes[started++], data, size);
	while (answered < started) {
		rados_completion_t *oldest = &writes[answered++ % depth];
		bad += !refused(*oldest);
		if (seconds() - began < lasting) {
			begin(pool, oldest, data, size);
			started++;
		}
	}
	double took = seconds() - began;
	cpu = cpu_seconds() - cpu;
	printf("null size %zu depth %d: %ld ops %.3f s  %.1f op/s  %.1f MiB/s  client cpu %.3f s  %.2f us/op  bad %ld\n",
	       size, depth, answered, took, answered / took, answered * (size / 1048576.0) / took, cpu,
	       cpu * 1e6 / answered, bad);
	rados_ioctx_destroy(pool);
	rados_shutdown(cluster);
	return bad != 0;
}
