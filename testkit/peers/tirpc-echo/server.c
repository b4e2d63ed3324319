/*
 * A libtirpc server for SEGCHAIN_ECHO on a free TCP port of 127.0.0.1 and on a unix socket.
 *
 *     server UNIX_PATH SEND_BYTES RECEIVE_BYTES RECORD_BYTES
 *
 * The byte counts are libtirpc's buffer sizes and its limit on a record; 0 takes its default. Once it listens, it prints
 * "listening on port N". It does not register with rpcbind. Replies leave in fragments as large as the send buffer: that is
 * what it is here for.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <rpc/rpc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "echo.h"

static void fail(const char *step)
{
    perror(step);
    exit(1);
}

/* The bytes of SOURCE: no period divides a power of two, so a piece that is lost or doubled shows. */
static void fill(char *bytes, u_int count)
{
    for (u_int i = 0; i < count; i++)
        bytes[i] = (char)(i % 251);
}

static void source(struct svc_req *request, SVCXPRT *transport)
{
    u_int count = 0;
    payload reply = {0};

    (void)request;
    if (!svc_getargs(transport, (xdrproc_t)xdr_u_int, (caddr_t)&count)) {
        svcerr_decode(transport);
        return;
    }
    reply.payload_val = malloc((size_t)count + 1);
    if (!reply.payload_val) {
        svcerr_systemerr(transport);
        return;
    }
    reply.payload_len = count;
    fill(reply.payload_val, count);
    svc_sendreply(transport, (xdrproc_t)xdr_payload, (caddr_t)&reply);
    free(reply.payload_val);
}

static void take(struct svc_req *request, SVCXPRT *transport)
{
    payload argument = {0};

    if (!svc_getargs(transport, (xdrproc_t)xdr_payload, (caddr_t)&argument)) {
        svcerr_decode(transport);
        return;
    }
    if (request->rq_proc == GIVE_BACK)
        svc_sendreply(transport, (xdrproc_t)xdr_payload, (caddr_t)&argument);
    else
        svc_sendreply(transport, (xdrproc_t)xdr_u_int, (caddr_t)&argument.payload_len);
    svc_freeargs(transport, (xdrproc_t)xdr_payload, (caddr_t)&argument);
}

static void dispatch(struct svc_req *request, SVCXPRT *transport)
{
    switch (request->rq_proc) {
    case NULLPROC:
        svc_sendreply(transport, (xdrproc_t)xdr_void, NULL);
        break;
    case GIVE_BACK:
    case SINK:
        take(request, transport);
        break;
    case SOURCE:
        source(request, transport);
        break;
    default:
        svcerr_noproc(transport);
    }
}

static int listener(const struct sockaddr *address, socklen_t length)
{
    int fd = socket(address->sa_family, SOCK_STREAM, 0);

    if (fd < 0 || bind(fd, address, length) || listen(fd, 64))
        fail(address->sa_family == AF_UNIX ? "unix socket" : "TCP socket");
    return fd;
}

static void serve(int fd, u_int send_bytes, u_int receive_bytes)
{
    SVCXPRT *transport = svc_vc_create(fd, send_bytes, receive_bytes);

    /* Without a netconfig nothing is registered with rpcbind. */
    if (!transport || !svc_reg(transport, SEGCHAIN_ECHO, SEGCHAIN_ECHO_1, dispatch, NULL))
        fail("svc_reg");
}

int main(int argc, char **argv)
{
    struct sockaddr_in tcp = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    socklen_t length = sizeof tcp;
    u_int send_bytes, receive_bytes;
    int record_bytes, fd;

    if (argc != 5 || strlen(argv[1]) >= sizeof local.sun_path) {
        fprintf(stderr, "usage: server UNIX_PATH SEND_BYTES RECEIVE_BYTES RECORD_BYTES\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    send_bytes = (u_int)strtoul(argv[2], NULL, 10);
    receive_bytes = (u_int)strtoul(argv[3], NULL, 10);
    record_bytes = (int)strtol(argv[4], NULL, 10);
    if (record_bytes && !rpc_control(RPC_SVC_CONNMAXREC_SET, &record_bytes))
        fail("rpc_control");

    strcpy(local.sun_path, argv[1]);
    serve(listener((struct sockaddr *)&local, sizeof local), send_bytes, receive_bytes);
    fd = listener((struct sockaddr *)&tcp, sizeof tcp);
    serve(fd, send_bytes, receive_bytes);
    if (getsockname(fd, (struct sockaddr *)&tcp, &length))
        fail("getsockname");
    printf("listening on port %u\n", ntohs(tcp.sin_port));
    fflush(stdout);
    svc_run();
    fprintf(stderr, "svc_run returned\n");
    return 1;
}
